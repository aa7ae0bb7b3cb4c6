"""Recurrent policies in the loop: the learner's unroll of a fragment gives what the actor recorded, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.env.lanes import Lanes
from actors.evaluate import evaluate
from actors.policy import Policy
from actors.rollout import Rollout
from common.clock import ManualClock
from common.fragment import End, FragmentBuffer, FragmentLayout
from common.nets import ActorCritic, NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.weights import WeightsHeader, encode_weights
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import lanes_of

FLAVOURS = [("Counting", "sync"), ("Counting", "own"), ("CountingSameStep", "own"), ("CountingDisabled", "own")]
CORES = ["lstm", "gru"]
TOLERANCE = 1e-5


class Loop(NamedTuple):
    """Lanes, a policy with weights of `model`, and the rollout between them."""

    lanes: Lanes
    policy: Policy
    rollout: Rollout
    buffer: FragmentBuffer
    model: ActorCritic
    noise: np.random.Generator

    def fill(self) -> FragmentBuffer:
        rows, lanes = self.buffer.reward.shape
        self.rollout.fill(self.noise.random((rows, lanes), dtype=np.float32))
        return self.buffer


def model_and_document(lanes: Lanes, net: NetConfig, version: int) -> tuple[ActorCritic, NDArray[np.uint8]]:
    """A network of large random weights, so that what it remembers shows, and its document."""
    generator = np.random.default_rng(version)
    model = make_actor_critic(lanes.observation, lanes.action, net, generator)
    parameters = FlatParameters(model, trainable=False)
    parameters.load(generator.normal(0.0, 0.6, parameters.num_elements).astype(np.float32))
    header = WeightsHeader(run="test", term=0, version=version, update=0, fingerprint=parameters.manifest.fingerprint())
    return model, encode_weights(parameters.manifest, parameters.numpy(), header)


def loop_over(lanes: Lanes, rows: int, *, core: Any = "lstm", seed: int = 0, void_broken: bool = True) -> Loop:
    """A loop that stands at the beginning; lanes that were restored are not started."""
    net = NetConfig(hidden=(6,), core=core, core_size=5)
    layout = FragmentLayout(
        num_rows=rows,
        num_lanes=lanes.num_lanes,
        observation=lanes.observation,
        action=lanes.action,
        state_size=net.state_size,
    )
    policy = Policy(lanes.observation, lanes.action, net)
    policy.begin(lanes.num_lanes)
    model, document = model_and_document(lanes, net, 1)
    policy.follow(document)
    buffer = FragmentBuffer(layout)
    for array in (buffer.value, buffer.log_prob, buffer.core_state):
        array[...] = np.nan
    rollout = Rollout(lanes, policy, buffer, ManualClock(), void_broken=void_broken, beat=lambda tick: None)
    return Loop(lanes, policy, rollout, buffer, model, np.random.default_rng(seed))


@torch.inference_mode()
def check_unroll(buffer: FragmentBuffer, model: ActorCritic) -> None:
    """Unrolled from `core_state` with the same weights: values of valid rows and of their next, log-probabilities."""
    rows, lanes = buffer.reward.shape
    valid_before = np.concatenate((np.ones((1, lanes)), buffer.valid))
    observation = {name: torch.from_numpy(part) for name, part in buffer.observation.items()}
    state, before = torch.from_numpy(buffer.core_state), torch.from_numpy(valid_before)
    parameters, value, _ = model.unroll(observation, state, before)
    action = torch.from_numpy(buffer.action)
    log_prob = model.head.log_prob_and_entropy(parameters[:-1].flatten(0, 1), action.flatten(0, 1))[0].numpy()
    valid = buffer.valid == 1
    counts = np.concatenate((valid, np.zeros((1, lanes), bool))) | np.concatenate((np.zeros((1, lanes), bool), valid))
    np.testing.assert_allclose(value.numpy()[counts], buffer.value[counts], rtol=TOLERANCE, atol=TOLERANCE)
    recorded = buffer.log_prob[valid]
    np.testing.assert_allclose(log_prob.reshape(rows, lanes)[valid], recorded, rtol=TOLERANCE, atol=TOLERANCE)


class Retold:
    """What the values should have been, retold step by step: memory begins where an observation counts 0.

    It knows nothing of rows that are not valid, of fragments or of autoreset modes.
    """

    def __init__(self, model: ActorCritic, num_lanes: int) -> None:
        self.model = model
        self.states = [torch.zeros(1, model.state_size) for _ in range(num_lanes)]

    @torch.inference_mode()
    def check(self, buffer: FragmentBuffer) -> None:
        for lane in range(len(self.states)):
            for t in np.flatnonzero(buffer.valid[:, lane]):
                now, after = ({"obs": torch.from_numpy(buffer.observation["obs"][i, lane][None])} for i in (t, t + 1))
                if now["obs"][0, 0] == 0:
                    self.states[lane] = torch.zeros_like(self.states[lane])
                _, value, self.states[lane] = self.model.step(now, self.states[lane])
                assert abs(float(value) - buffer.value[t, lane]) < 1e-4
                following = float(self.model.step(after, self.states[lane])[1])
                assert abs(following - buffer.value[t + 1, lane]) < 1e-4


def counting(flavour: tuple[str, str], num_lanes: int) -> Lanes:
    return lanes_of(flavour[0], num_lanes, vectorise=flavour[1], kwargs={"length": 4, "obeys": True})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_lanes=st.integers(1, 4),
    rows=st.integers(1, 9),
    flavour=st.sampled_from(FLAVOURS),
    core=st.sampled_from(CORES),
)
def test_a_fragment_unrolled_gives_what_was_recorded(
    seed: int, num_lanes: int, rows: int, flavour: tuple[str, str], core: str
) -> None:
    """Wherever episodes end and fragments begin, in every autoreset mode: rows, and values of final observations."""
    lanes = counting(flavour, num_lanes)
    lanes.start()
    loop = loop_over(lanes, rows, core=core, seed=seed)
    retold = Retold(loop.model, num_lanes)
    for _ in range(2 + 12 // rows):
        check_unroll(loop.fill(), loop.model)
        retold.check(loop.buffer)
    lanes.close()


@pytest.mark.parametrize("void_broken", [True, False])
@pytest.mark.parametrize(
    ("name", "vectorise"), [("NaNReward", "sync"), ("NaNRewardSameStep", "own"), ("NaNRewardDisabled", "own")]
)
@pytest.mark.parametrize("rows", [1, 4, 14])
def test_a_broken_episode_leaves_no_memory(name: str, vectorise: str, rows: int, void_broken: bool) -> None:
    """What counts is what an unroll gives, though rows were voided; the lane begins again with a state of zeros."""
    policy = "drop_episode" if void_broken else "end_episode"
    lanes = lanes_of(name, 2, vectorise=vectorise, on_nonfinite=policy)
    lanes.start()
    loop = loop_over(lanes, rows, void_broken=void_broken)
    fresh = loop.policy.values(lanes.current)[0]
    begun = broken = 0
    for _ in range(28 // rows):
        buffer = loop.fill()
        check_unroll(buffer, loop.model)
        broken += int((buffer.end == End.BROKEN).sum())
        begins = (buffer.valid == 1) & (buffer.observation["obs"][:-1, :, 0] == 0)
        begun += int(begins.sum())
        np.testing.assert_allclose(buffer.value[:-1][begins], fresh, rtol=TOLERANCE)
    assert broken >= 1 and begun >= (0 if void_broken and name == "NaNReward" else 2)
    lanes.close()


def test_memory_outlives_new_weights() -> None:
    """The second fragment begins with the state that the first one ended with, and is made by the new weights."""
    lanes = lanes_of("Counting", 2, vectorise="own", kwargs={"length": 100})
    lanes.start()
    loop = loop_over(lanes, 3)
    before = loop.fill().core_state.copy()
    carried = loop.policy.state()
    model, document = model_and_document(lanes, NetConfig(hidden=(6,), core="lstm", core_size=5), 2)
    loop.policy.follow(document)
    assert (loop.policy.state() == carried).all() and carried.any() and not before.any()
    buffer = loop.fill()
    assert (buffer.core_state == carried).all()
    check_unroll(buffer, model)
    with pytest.raises(AssertionError):
        check_unroll(buffer, loop.model)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_a_snapshot_in_mid_episode_goes_on_bit_for_bit(name: str, vectorise: str, num_before: int, core: str) -> None:
    """Put back from the wire, with episodes under way, ended on the last row or just begun: the same fragments."""
    lanes, twin = (counting((name, vectorise), 3) for _ in range(2))
    lanes.start()
    loop = loop_over(lanes, 3, core=core)
    for _ in range(num_before):
        loop.fill()
    saved = unpack_plain(pack_plain({"lanes": lanes.snapshot(), "rollout": loop.rollout.state()}))
    twin.restore(saved["lanes"])
    again = loop_over(twin, 3, core=core)
    again.rollout.set_state(saved["rollout"])
    again.noise.bit_generator.state = loop.noise.bit_generator.state
    for _ in range(4):
        one, other = loop.fill(), again.fill()
        for array in ("action", "reward", "end", "valid", "log_prob", "value", "core_state"):
            assert (getattr(one, array) == getattr(other, array)).all(), array
    lanes.close()
    twin.close()


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
def test_evaluation_begins_each_episode_without_memory(name: str, vectorise: str) -> None:
    """Greedy episodes of one environment are alike: the first, the next of the same lane, and those of other lanes."""
    lanes = lanes_of(name, 2, vectorise=vectorise, kwargs={"length": 9, "obeys": True})
    seen: list[list[float]] = []
    loop = loop_over(lanes, 1)
    loop.policy.begin(7)  # whatever was before is gone
    model_step = loop.policy._model.step

    def listening(observation: Any, state: torch.Tensor) -> Any:
        seen.extend(state[observation["obs"][:, 0] == 0].tolist())
        return model_step(observation, state)

    loop.policy._model.step = listening  # type: ignore[method-assign]
    result = evaluate(lanes, loop.policy, episodes=6, max_ticks=1000, beat=lambda tick: None)
    lanes.close()
    assert len(set(result.returns)) == 1 and len(seen) >= 6
    assert not np.any(seen)
