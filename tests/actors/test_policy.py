"""The network as actors run it: weights verified before they act, actions that are what their log-probability says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.policy import Policy
from common.errors import WireError
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.specs import ArraySpec, SpaceSpec
from common.weights import WeightsHeader, encode_weights
from tests.support import box, discrete, space

NET = NetConfig(hidden=(8,))
ACTIONS = [discrete(3), box(2, low=-1.0, high=1.0)]


def weights_document(
    observation: SpaceSpec, action: ArraySpec, *, version: int = 1, seed: int = 0, net: NetConfig = NET
) -> NDArray[np.uint8]:
    """A published document of a network with random weights."""
    model = make_actor_critic(observation, action, net, np.random.default_rng(seed))
    parameters = FlatParameters(model, trainable=False)
    header = WeightsHeader(run="test", term=0, version=version, update=0, fingerprint=parameters.manifest.fingerprint())
    return encode_weights(parameters.manifest, parameters.numpy(), header)


def policy_of(action: ArraySpec, *, seed: int = 0) -> Policy:
    observation = space(obs=box(4))
    policy = Policy(observation, action, NET)
    policy.follow(weights_document(observation, action, seed=seed))
    return policy


def observations(num_lanes: int) -> dict[str, NDArray[Any]]:
    return {"obs": np.random.default_rng(1).standard_normal((num_lanes, 4), dtype=np.float32)}


def generators(num_lanes: int) -> list[np.random.Generator]:
    return [np.random.default_rng(lane) for lane in range(num_lanes)]


def test_damaged_weights_are_refused_and_the_old_ones_stay() -> None:
    """One flipped bit anywhere in the document: WireError, and not a byte of the live weights has changed."""
    observation, action = space(obs=box(4)), discrete(3)
    policy = policy_of(action)
    before = policy.act(observations(5), policy.draw_noise(generators(5), 1)[0])
    document = weights_document(observation, action, version=2, seed=9)
    for position in (0, 40, len(document) // 2, len(document) - 1):
        damaged = document.copy()
        damaged[position] ^= 4
        with pytest.raises(WireError):
            policy.follow(damaged)
    assert policy.version == 1
    after = policy.act(observations(5), policy.draw_noise(generators(5), 1)[0])
    for one, other in zip(before, after, strict=True):
        assert (one == other).all()


def test_weights_of_another_network_are_refused() -> None:
    """The manifest's fingerprint says that they do not fit."""
    policy = policy_of(discrete(3))
    with pytest.raises(WireError, match="manifest"):
        policy.follow(weights_document(space(obs=box(4)), discrete(3), net=NetConfig(hidden=(9,))))


def test_weights_are_copied_out_of_their_document() -> None:
    """A document may be overwritten once it was followed."""
    observation, action = space(obs=box(4)), discrete(3)
    document = weights_document(observation, action)
    policy = Policy(observation, action, NET)
    policy.follow(document)
    before = policy.values(observations(3))
    document[:] = 0
    assert (policy.values(observations(3)) == before).all()


@pytest.mark.parametrize("action", ACTIONS)
def test_log_probabilities_are_those_of_the_actions(action: ArraySpec) -> None:
    """What `act` says of its action is what the distribution says of it, bit for bit; shapes and dtypes as stored."""
    policy, observation = policy_of(action), observations(6)
    acted = policy.act(observation, policy.draw_noise(generators(6), 1)[0])
    assert acted.action.shape == (6, *action.shape)
    assert acted.action.dtype == ("float32" if action.kind == "box" else "int64")
    with torch.inference_mode():
        parameters, value = policy._model({"obs": torch.from_numpy(observation["obs"])})
        log_prob, _ = policy.head.log_prob_and_entropy(parameters, torch.from_numpy(acted.action))
    assert (acted.log_prob == log_prob.numpy()).all()
    assert (acted.value == value.numpy()).all()
    assert (acted.value == policy.values(observation)).all()


@pytest.mark.parametrize("action", ACTIONS)
def test_greedy_actions_are_the_most_probable(action: ArraySpec) -> None:
    """No sample of many has a larger log-probability than the greedy action."""
    policy, observation = policy_of(action), observations(1)
    greedy = policy.greedy(observation)
    with torch.inference_mode():
        parameters, _ = policy._model({"obs": torch.from_numpy(observation["obs"])})
        best, _ = policy.head.log_prob_and_entropy(parameters, torch.from_numpy(greedy))
    noise = policy.draw_noise(generators(1), 200)
    assert max(float(policy.act(observation, each).log_prob[0]) for each in noise) <= float(best[0])


@pytest.mark.parametrize("action", ACTIONS)
def test_noise_of_a_lane_depends_on_its_own_generator_alone(action: ArraySpec) -> None:
    """Lanes more or fewer, other lanes' generators ahead or behind: a lane's block is the same."""
    policy = policy_of(action)
    many = policy.draw_noise(generators(5), 7)
    assert many.shape == (7, 5, *policy.head.noise_shape)
    assert many.dtype == np.float32
    for lane in range(5):
        alone = policy.draw_noise([np.random.default_rng(lane)], 7)
        assert (many[:, lane] == alone[:, 0]).all()
    uniform = action.kind != "box"
    assert ((many >= 0) & (many < 1)).all() == uniform


def test_two_policies_with_the_same_weights_act_alike() -> None:
    """Nothing of the placeholder weights, or of torch's global generator, is left in what acts."""
    noise = policy_of(discrete(3)).draw_noise(generators(4), 1)[0]
    torch.manual_seed(1)
    one = policy_of(discrete(3)).act(observations(4), noise)
    torch.manual_seed(2)
    other = policy_of(discrete(3)).act(observations(4), noise)
    for first, second in zip(one, other, strict=True):
        assert (first == second).all()
