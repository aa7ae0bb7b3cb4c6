"""Actors act by the statistics that come with their weights, and keep each lane's discounted return over fragments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.evaluate import evaluate
from actors.policy import Policy
from actors.rollout import Rollout
from common.clock import ManualClock
from common.errors import WireError
from common.fragment import End, FragmentBuffer, FragmentLayout
from common.nets import NetConfig, make_actor_critic
from common.normalize import InputScale, ProcessingConfig, RunningReturns, discounted_returns
from common.parameters import FlatParameters
from common.specs import ArraySpec, SpaceSpec
from common.weights import WeightsHeader, encode_weights
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import lanes_of
from tests.support import box, discrete, space

OBSERVATION, ACTION, NET = space(obs=box(2)), discrete(5), NetConfig(hidden=(8,))
REWARDS = ProcessingConfig(normalise_rewards=True, reward_scale=0.5, reward_clip=1.25)
DISCOUNT = 0.9


def scale(mean: float, factor: float = 2.0) -> InputScale:
    """The same for both elements."""
    return InputScale(mean=np.full(2, mean), factor=np.full(2, factor), clip=10.0)


def weights(
    version: int, extra: dict[str, Any], *, observation: SpaceSpec = OBSERVATION, action: ArraySpec = ACTION
) -> NDArray[np.uint8]:
    """A document of the one network of these tests, with statistics."""
    model = make_actor_critic(observation, action, NET, np.random.default_rng(0))
    parameters = FlatParameters(model, trainable=False)
    fingerprint = parameters.manifest.fingerprint()
    header = WeightsHeader(run="test", term=0, version=version, update=0, fingerprint=fingerprint, extra=extra)
    return encode_weights(parameters.manifest, parameters.numpy(), header)


def values(policy: Policy, row: float) -> float:
    """Of an observation of equal elements."""
    return float(policy.values({"obs": np.full((1, 2), row, np.float32)})[0])


def policy_with(extra: dict[str, Any]) -> Policy:
    policy = Policy(OBSERVATION, ACTION, NET)
    policy.begin(1)
    policy.follow(weights(1, extra))
    return policy


def test_a_policy_sees_by_the_statistics_of_its_weights() -> None:
    """3 by mean 1 and factor 2 is what 4 is without any; and beyond the clip everything looks alike."""
    plain, seeing = policy_with({}), policy_with(scale(1.0).to_plain())
    assert values(seeing, 3.0) == values(plain, 4.0) != values(plain, 3.0)
    assert values(seeing, 100.0) == values(seeing, 1000.0) == values(plain, 10.0)


def test_statistics_change_when_the_weights_do_and_not_before() -> None:
    """C26: what is offered is held ready, and swapped in together with its version; the same parameters throughout."""
    policy, plain = policy_with(scale(1.0).to_plain()), policy_with({})
    assert policy.offer(weights(2, scale(2.0).to_plain())) == 2
    assert (policy.version, values(policy, 3.0)) == (1, values(plain, 4.0))
    policy.swap()
    assert (policy.version, values(policy, 3.0)) == (2, values(plain, 2.0))
    policy.follow(weights(3, {}))
    assert (policy.version, values(policy, 3.0)) == (3, values(plain, 3.0))


@pytest.mark.parametrize("way", ["follow", "offer"])
def test_weights_with_statistics_of_other_observations_are_refused_and_the_old_ones_stay(way: str) -> None:
    """Neither parameters nor statistics have changed, nor what was held ready."""
    policy = policy_with(scale(1.0).to_plain())
    policy.offer(weights(2, scale(2.0).to_plain()))
    before = values(policy, 3.0)
    other = InputScale(mean=np.zeros(3), factor=np.ones(3), clip=10.0)
    with pytest.raises(WireError, match="statistics of weights"):
        getattr(policy, way)(weights(5, other.to_plain()))
    assert (policy.version, values(policy, 3.0)) == (1, before)
    policy.swap()
    assert policy.version == 2


def test_the_digest_of_a_document_covers_its_statistics() -> None:
    """Wherever a bit of the mean is flipped."""
    document = weights(1, scale(1.0).to_plain())
    place = document.tobytes().index(np.float64(1.0).tobytes())
    for offset in range(8):
        damaged = document.copy()
        damaged[place + offset] ^= 1
        with pytest.raises(WireError, match="digest"):
            Policy(OBSERVATION, ACTION, NET).follow(damaged)


def test_evaluation_sees_by_the_statistics_of_its_weights() -> None:
    """The greedy actions are those of a network that is shown what the statistics make of each observation."""
    lanes = lanes_of("Counting", 1, vectorise="sync", kwargs={"length": 4})
    seen: list[NDArray[Any]] = []
    plain, seeing = policy_with({}), policy_with(scale(1.5, 3.0).to_plain())
    greedy = seeing.greedy

    def watched(observation: Any) -> NDArray[Any]:
        action = greedy(observation)
        expected = plain.greedy({"obs": ((observation["obs"].astype(np.float64) - 1.5) * 3.0).astype(np.float32)})
        assert action.tolist() == expected.tolist()
        seen.append(action)
        return action

    seeing.greedy = watched  # type: ignore[method-assign]
    result = evaluate(lanes, seeing, episodes=1, max_ticks=100, beat=lambda tick: None)
    assert len(seen) == 4 and result.returns == (10.0,)  # 1 + 2 + 3 + 4: reported as the environment gave them


# Discounted returns over fragments


class Loop:
    """Lanes of `flavour` and a rollout that keeps returns; the same actions for the same seed."""

    def __init__(self, flavour: str, rows: int, *, num_lanes: int = 2, kwargs: dict[str, Any] | None = None) -> None:
        name, _, how = flavour.partition(" ")
        options = {"length": 5, "obeys": True} if kwargs is None else kwargs
        self.lanes = lanes_of(name, num_lanes, vectorise=how, kwargs=options, on_nonfinite="drop_episode")
        layout = FragmentLayout(
            num_rows=rows,
            num_lanes=num_lanes,
            observation=self.lanes.observation,
            action=self.lanes.action,
            returns=True,
        )
        self.buffer = FragmentBuffer(layout)
        policy = Policy(self.lanes.observation, self.lanes.action, NET)
        policy.begin(num_lanes)
        policy.follow(weights(1, {}, observation=self.lanes.observation, action=self.lanes.action))
        returns = RunningReturns(num_lanes, REWARDS, DISCOUNT)
        self.rollout = Rollout(
            self.lanes, policy, self.buffer, ManualClock(), void_broken=True, beat=lambda tick: None, returns=returns
        )
        self.noise = np.random.default_rng(0)

    def fill(self) -> FragmentBuffer:
        rows, lanes = self.buffer.reward.shape
        self.rollout.fill(self.noise.random((rows, lanes), dtype=np.float32))
        return self.buffer

    def returns(self) -> NDArray[np.float64]:
        """Of the fragment as it stands, as a learner computes them."""
        buffer = self.buffer
        shaped = REWARDS.shaped(buffer.reward)
        return discounted_returns(shaped, buffer.end, buffer.valid, buffer.return_before, DISCOUNT)[0]


FLAVOURS = ["Counting sync", "Counting own", "CountingSameStep own", "CountingDisabled own"]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_episode_has_one_discounted_return_however_many_fragments_it_spans(flavour: str) -> None:
    """Retold row by row, knowing neither fragments nor autoreset modes: an episode begins where the count is 1."""
    loop, running, compared = Loop(flavour, rows=3), np.zeros(2), 0
    loop.lanes.start()
    for _ in range(20):
        buffer = loop.fill()
        returns = loop.returns()
        for t, lane in np.argwhere(buffer.valid):
            reward = float(buffer.reward[t, lane])
            shaped = min(1.25, 0.5 * reward)
            running[lane] = shaped if reward == 1.0 else DISCOUNT * running[lane] + shaped
            assert returns[t, lane] == running[lane]
            compared += 1
    assert compared > 60


@pytest.mark.parametrize("flavour", FLAVOURS[:1])
def test_returns_go_on_from_a_snapshot_bit_for_bit(flavour: str) -> None:
    """Through the wire's plain values, in the middle of episodes."""
    loop = Loop(flavour, rows=3)
    loop.lanes.start()
    loop.fill()
    state, lanes = unpack_plain(pack_plain(loop.rollout.state())), loop.lanes.snapshot()
    assert lanes is not None and state["returns"].any()
    again = Loop(flavour, rows=3)
    again.lanes.restore(lanes)
    again.rollout.set_state(state)
    again.noise.bit_generator.state = loop.noise.bit_generator.state
    for _ in range(4):
        one, other = loop.fill(), again.fill()
        assert one.return_before.tobytes() == other.return_before.tobytes()
        assert one.reward.tobytes() == other.reward.tobytes()


def test_a_broken_episode_leaves_nothing_behind_in_the_next_ones_return() -> None:
    """Every episode breaks at its fifth step: the next one begins at 0, in this fragment or in the one after."""
    loop, episodes, begins = Loop("NaNReward sync", rows=4, num_lanes=1, kwargs={"at": 5}), 0, True
    loop.lanes.start()
    for _ in range(12):
        buffer = loop.fill()
        returns = loop.returns()
        assert np.isfinite(returns).all() and np.isfinite(buffer.return_before).all()
        for t in range(4):
            if buffer.valid[t, 0] and begins:
                assert returns[t, 0] == 0.5  # the reward of 1, scaled
                episodes += 1
            begins = buffer.end[t, 0] == End.BROKEN or (begins and not buffer.valid[t, 0])
    assert episodes >= 4
