"""Fragments: the same transitions through every kind of lanes, and nothing in them that should not be there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.env.lanes import LaneFacts, Lanes, Restart, Tick
from actors.policy import Acted
from actors.rollout import Rollout, RolloutReport
from common.clock import ManualClock
from common.fragment import End, FragmentBuffer, FragmentLayout
from common.specs import SpaceSpec
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import lanes_of
from tests.support import box, discrete

FLAVOURS = [("Counting", "sync"), ("Counting", "own"), ("CountingSameStep", "own"), ("CountingDisabled", "own")]
GARBAGE = 77


class Row(NamedTuple):
    """One valid row, as Python values that compare exactly."""

    observation: list[float]
    action: int
    reward: float
    end: int
    next_observation: list[float]
    log_prob: float
    value: float


class ScriptedPolicy:
    """Acts as a script says for a lane's n-th episode at its k-th step; a lane's episode begins where obs[0] is 0.

    Of an observation (index, last action) the value is index + 0.25; log-probabilities are minus the action.
    """

    def __init__(self, script: NDArray[np.int64]) -> None:
        self.script = script  # [lane, episode, step]
        self.episode = np.full(len(script), -1)
        self.head = SimpleNamespace(to_environment=lambda action: action)
        self.version = 0
        self.state_size = 0

    def state(self) -> NDArray[np.float32]:
        return np.zeros((len(self.script), 0), np.float32)

    def act(self, observation: Mapping[str, NDArray[Any]], noise: NDArray[np.float32]) -> Acted:
        index = observation["obs"][:, 0].astype(int)
        self.episode += index == 0
        _, episodes, steps = self.script.shape
        action = self.script[np.arange(len(index)), self.episode % episodes, index % steps]
        return Acted(action, -action.astype(np.float32), self.values(observation))

    def values(
        self, observation: Mapping[str, NDArray[Any]], lanes: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        return np.asarray(observation["obs"][:, 0] + 0.25, np.float32)


class HandMadeLanes:
    """Ticks written down by hand, one lane unless the arrays say otherwise; observations are running numbers."""

    observation = SpaceSpec(parts=(("obs", box(2)),))
    action = discrete(5)
    broken_episodes = 0
    first_broken = ""

    def __init__(self, ticks: list[Tick], *, aligned: bool = True) -> None:
        self.ticks = iter(ticks)
        self.aligned = aligned
        self.num_lanes = len(ticks[0].end)
        self.current = {"obs": np.zeros((self.num_lanes, 2), np.float32)}

    @property
    def facts(self) -> LaneFacts:
        raise AssertionError("not asked for")

    def step(self, action: NDArray[Any]) -> Tick:
        tick = next(self.ticks)
        self.current = {"obs": tick.observation["obs"].copy()}
        if tick.restart is not None:
            self.current["obs"][tick.restart.lanes] = tick.restart.observation["obs"]
        return tick


def tick(index: float, reward: float, end: End = End.CONTINUES, *, valid: bool = True, restarts: bool = False) -> Tick:
    """One tick of a single lane."""
    began = Restart(np.array([0]), {"obs": np.zeros((1, 2), np.float32)}) if restarts else None
    observation = {"obs": np.array([[index, 0]], np.float32)}
    return Tick(observation, np.array([reward]), np.array([end], np.uint8), np.array([valid]), began)


def no_beat(tick: int) -> None:
    """Nobody watches."""


def rollout_of(
    lanes: Any, rows: int, *, void_broken: bool = True, script: NDArray[np.int64] | None = None
) -> tuple[Rollout, FragmentBuffer]:
    """A rollout over started `lanes` whose buffer is full of garbage."""
    if script is None:
        script = np.zeros((lanes.num_lanes, 1, 1), np.int64)
    layout = FragmentLayout(
        num_rows=rows, num_lanes=lanes.num_lanes, observation=lanes.observation, action=lanes.action
    )
    buffer = FragmentBuffer(layout)
    poison(buffer)
    policy: Any = ScriptedPolicy(script)
    return Rollout(lanes, policy, buffer, ManualClock(), void_broken=void_broken, beat=no_beat), buffer


def poison(buffer: FragmentBuffer) -> None:
    """Whatever is not written afterwards shows: NaN where there is one, else a value that occurs nowhere."""
    arrays = [*buffer.observation.values(), buffer.action, buffer.reward, buffer.end, buffer.valid]
    for array in [*arrays, buffer.log_prob, buffer.value]:
        array[...] = np.nan if array.dtype.kind == "f" else GARBAGE


def fill(rollout: Rollout, buffer: FragmentBuffer) -> RolloutReport:
    """The next fragment; checks what must hold in each."""
    poison(buffer)
    report = rollout.fill(np.zeros((len(buffer.reward), buffer.reward.shape[1]), np.float32))
    check(buffer)
    assert report.num_valid == buffer.valid.sum()
    return report


def check(buffer: FragmentBuffer) -> None:
    """No NaN, nothing left of the old content, rewards of valid rows only, ends of valid or broken rows only."""
    for array in (*buffer.observation.values(), buffer.reward, buffer.log_prob, buffer.value):
        assert np.isfinite(array).all()
    assert set(np.unique(buffer.valid)) <= {0, 1}
    assert buffer.end.max() <= max(End)
    assert buffer.action.max() < 5
    assert not buffer.reward[buffer.valid == 0].any()
    ended = (buffer.end == End.TERMINATED) | (buffer.end == End.TRUNCATED)
    assert not ended[buffer.valid == 0].any()
    after_an_end = ended[:-1] & (buffer.valid[1:] == 1)
    assert not after_an_end.any(), "the row after an end holds the final observation and no transition"


def rows_of(buffer: FragmentBuffer) -> list[list[Row]]:
    """Valid rows by lane."""
    obs = buffer.observation["obs"]
    found: list[list[Row]] = []
    for lane in range(buffer.reward.shape[1]):
        found.append([])
        for t in np.flatnonzero(buffer.valid[:, lane]):
            found[-1].append(
                Row(
                    obs[t, lane].tolist(),
                    int(buffer.action[t, lane]),
                    float(buffer.reward[t, lane]),
                    int(buffer.end[t, lane]),
                    obs[t + 1, lane].tolist(),
                    float(buffer.log_prob[t, lane]),
                    float(buffer.value[t, lane]),
                )
            )
    return found


def collected(
    name: str, vectorise: str, script: NDArray[np.int64], rows: int, num_fragments: int
) -> tuple[list[list[Row]], list[tuple[float, int]]]:
    """Valid rows by lane, and (return, length) of the ended episodes, over several fragments."""
    lanes = lanes_of(name, len(script), vectorise=vectorise, kwargs={"length": 4, "obeys": True})
    lanes.start()
    rollout, buffer = rollout_of(lanes, rows, script=script)
    found: list[list[Row]] = [[] for _ in script]
    episodes: list[tuple[float, int]] = []
    for _ in range(num_fragments):
        report = fill(rollout, buffer)
        episodes += zip(report.episode_returns, report.episode_lengths, strict=True)
        for lane, more in zip(found, rows_of(buffer), strict=True):
            lane += more
    lanes.close()
    return found, episodes


# ---- the same transitions ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_lanes=st.integers(1, 4), rows=st.integers(1, 9))
def test_aligned_and_unaligned_lanes_give_the_same_transitions(seed: int, num_lanes: int, rows: int) -> None:
    """Whatever the actions end, and wherever fragments begin, each lane's valid rows are equal in every field."""
    script = np.random.default_rng(seed).integers(0, 5, size=(num_lanes, 6, 4))
    results = [collected(*flavour, script, rows, 6 + 24 // rows)[0] for flavour in FLAVOURS]
    assert results[0] == results[1]
    for other in results[2:]:
        for one_lane, other_lane in zip(results[0], other, strict=True):
            common = min(len(one_lane), len(other_lane))
            assert one_lane[:common] == other_lane[:common]
            assert common >= (6 if rows > 1 else 1)


def test_children_give_the_transitions_of_our_own_process() -> None:
    """Asynchronous lanes fill the same fragments, bit for bit, as synchronous ones."""
    script = np.random.default_rng(5).integers(0, 5, size=(3, 6, 4))
    assert collected("Counting", "async", script, 7, 4) == collected("Counting", "sync", script, 7, 4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 9), flavour=st.sampled_from(FLAVOURS))
def test_every_valid_row_is_followed_by_its_true_next_observation(
    seed: int, rows: int, flavour: tuple[str, str]
) -> None:
    """obs[t+1] of a counting environment is (index + 1, the action taken), its reward index + 1, in every mode."""
    script = np.random.default_rng(seed).integers(0, 5, size=(3, 6, 4))
    found, episodes = collected(*flavour, script, rows, 3 + 12 // rows)
    for lane in found:
        for row in lane:
            index = row.observation[0]
            assert row.next_observation == [index + 1, row.action]
            assert (row.reward, row.value, row.log_prob) == (index + 1, index + 0.25, -row.action)
        for row, following in pairwise(lane):
            begins = [0.0, 0.0] if row.end else row.next_observation
            assert following.observation == begins
    ended = sum(row.end != End.CONTINUES for lane in found for row in lane)
    assert len(episodes) == ended
    assert all(value == length * (length + 1) / 2 for value, length in episodes)


# ---- the layout of rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
def test_an_episode_of_two_transitions_takes_three_rows(name: str, vectorise: str) -> None:
    """Golden: 0 > 1 > 2 terminated, a row without a transition that holds observation 2, then 0 again."""
    lanes = lanes_of(name, 2, vectorise=vectorise, kwargs={"length": 2})
    lanes.start()
    rollout, buffer = rollout_of(lanes, 6)
    report = fill(rollout, buffer)
    for lane in range(2):
        assert buffer.observation["obs"][:, lane, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert buffer.valid[:, lane].tolist() == [1, 1, 0, 1, 1, 0]
        assert buffer.end[:, lane].tolist() == [0, 1, 0, 0, 1, 0]
        assert buffer.reward[:, lane].tolist() == [1, 2, 0, 1, 2, 0]
        assert buffer.value[:, lane].tolist() == [0.25, 1.25, 2.25, 0.25, 1.25, 2.25, 0.25]
    assert (report.num_valid, report.num_voided) == (8, 0)
    assert report.episode_returns == (3.0,) * 4
    assert report.episode_lengths == (2,) * 4


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
def test_an_episode_that_ends_on_the_last_row_leaves_its_final_row_to_the_next_fragment(
    name: str, vectorise: str
) -> None:
    """Golden: the last observation of the fragment is the final one; the next begins with the row that repeats it."""
    lanes = lanes_of(name, 1, vectorise=vectorise, kwargs={"length": 2})
    lanes.start()
    rollout, buffer = rollout_of(lanes, 2)
    fill(rollout, buffer)
    assert buffer.observation["obs"][:, 0, 0].tolist() == [0, 1, 2]
    assert (buffer.valid[:, 0].tolist(), buffer.end[:, 0].tolist()) == ([1, 1], [0, 1])
    fill(rollout, buffer)
    assert buffer.observation["obs"][:, 0, 0].tolist() == [2, 0, 1]
    assert (buffer.valid[:, 0].tolist(), buffer.end[:, 0].tolist()) == ([0, 1], [0, 0])


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
def test_fragments_of_one_row(name: str, vectorise: str) -> None:
    """Golden: two transitions, then one fragment without any, over and over."""
    lanes = lanes_of(name, 1, vectorise=vectorise, kwargs={"length": 2})
    lanes.start()
    rollout, buffer = rollout_of(lanes, 1)
    found = []
    for _ in range(6):
        fill(rollout, buffer)
        found.append((buffer.observation["obs"][:, 0, 0].tolist(), buffer.valid[0, 0], buffer.end[0, 0]))
    assert found == [([0, 1], 1, 0), ([1, 2], 1, 1), ([2, 0], 0, 0)] * 2


def test_unaligned_lanes_that_cannot_be_filled_are_padded() -> None:
    """Golden: lane 0 ends each step and fills 5 rows in 3 ticks; lane 1 has 3 transitions, then rows without."""
    script = np.array([[[2]], [[0]]])
    lanes = lanes_of("CountingSameStep", 2, kwargs={"length": 100, "obeys": True})
    lanes.start()
    rollout, buffer = rollout_of(lanes, 5, script=script)
    fill(rollout, buffer)
    assert buffer.valid.T.tolist() == [[1, 0, 1, 0, 1], [1, 1, 1, 0, 0]]
    assert buffer.observation["obs"][:, 1, 0].tolist() == [0, 1, 2, 3, 3, 3]
    assert buffer.value[:, 1].tolist() == [0.25, 1.25, 2.25, 3.25, 3.25, 3.25]
    fill(rollout, buffer)
    assert buffer.observation["obs"][0].tolist() == [[1, 2], [3, 0]]
    assert buffer.valid.T.tolist() == [[0, 1, 0, 1, 0], [1, 1, 0, 0, 0]]


# ---- broken episodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("void_broken", "kept", "voided"), [(True, 0, 4), (False, 4, 0)])
def test_a_broken_episode_is_voided_or_ended(void_broken: bool, kept: int, voided: int) -> None:
    """Golden: each third reward is NaN. drop_episode voids the two transitions before it, end_episode keeps them."""
    policy = "drop_episode" if void_broken else "end_episode"
    lanes = lanes_of("NaNReward", 1, vectorise="sync", on_nonfinite=policy)
    lanes.start()
    rollout, buffer = rollout_of(lanes, 8, void_broken=void_broken)
    report = fill(rollout, buffer)
    assert buffer.end[:, 0].tolist() == [0, 0, 3, 0, 0, 0, 3, 0]
    assert buffer.valid[:, 0].tolist() == ([0] * 8 if void_broken else [1, 1, 0, 0, 1, 1, 0, 0])
    assert (report.num_valid, report.num_voided) == (kept, voided)
    assert report.episode_returns == ()


def test_each_fragment_counts_what_it_lost_itself() -> None:
    """Golden: two fragments of four rows, each with two transitions, a break and a reset row."""
    lanes = lanes_of("NaNReward", 1, vectorise="sync", on_nonfinite="drop_episode")
    lanes.start()
    rollout, buffer = rollout_of(lanes, 4)
    reports = [fill(rollout, buffer) for _ in range(2)]
    assert [(report.num_valid, report.num_voided) for report in reports] == [(0, 2), (0, 2)]


def test_only_rows_of_this_fragment_can_be_voided() -> None:
    """Rows that were sent in the fragment before are gone: the count says what this fragment lost."""
    lanes = lanes_of("NaNReward", 1, vectorise="sync", on_nonfinite="drop_episode")
    lanes.start()
    rollout, buffer = rollout_of(lanes, 1)
    reports = [fill(rollout, buffer) for _ in range(3)]
    assert [(report.num_valid, report.num_voided) for report in reports] == [(1, 0), (1, 0), (0, 0)]


@pytest.mark.parametrize("name", ["NaNReward", "NaNRewardSameStep", "NaNRewardDisabled"])
def test_a_broken_lane_harms_no_other(name: str) -> None:
    """Where the environment vectorises itself, lane 0 counts on as if lane 1 had not broken, which begins again."""
    lanes = lanes_of(name, 2, vectorise="own", on_nonfinite="drop_episode")
    lanes.start()
    rollout, buffer = rollout_of(lanes, 14)
    report = fill(rollout, buffer)
    lane, broken = rows_of(buffer)
    assert [row.next_observation[0] for row in lane] == [1, 2, 3, 4, 5, 6] * 2
    assert [row.next_observation[0] for row in broken] == [1, 2, 3, 4, 5, 6]
    assert report.num_voided == 2
    assert sorted(report.episode_lengths) == [6, 6, 6]
    assert report.episode_returns == (6.0,) * 3


@pytest.mark.parametrize("aligned", [True, False])
def test_an_episode_that_ended_well_is_not_voided_by_the_next(aligned: bool) -> None:
    """Golden: two transitions and an end, then a transition and a break: only the last one is voided."""
    good = [tick(1, 1.0), tick(2, 1.0, End.TERMINATED, restarts=not aligned)]
    reset = [tick(0, 0.0, valid=False)] if aligned else []
    bad = [tick(1, 1.0), tick(1, 0.0, End.BROKEN, valid=False)]
    lanes = HandMadeLanes(good + reset + bad, aligned=aligned)
    rollout, buffer = rollout_of(lanes, 5)
    report = fill(rollout, buffer)
    assert buffer.valid[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert buffer.end[:, 0].tolist() == [0, 1, 0, 0, 3]
    assert (report.num_voided, report.episode_returns, report.episode_lengths) == (1, (2.0,), (2,))


def test_a_lane_that_breaks_and_restarts_in_one_tick() -> None:
    """Golden, unaligned: the break is a row, the restart another; the next episode is counted from its beginning."""
    ticks = [tick(1, 1.0), tick(1, 0.0, End.BROKEN, valid=False, restarts=True), tick(1, 1.0), tick(2, 1.0)]
    ticks += [tick(3, 1.0, End.TRUNCATED, restarts=True)]
    rollout, buffer = rollout_of(HandMadeLanes(ticks, aligned=False), 6)
    report = fill(rollout, buffer)
    assert buffer.valid[:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert buffer.end[:, 0].tolist() == [0, 3, 0, 0, 0, 2]
    assert (report.num_voided, report.episode_returns, report.episode_lengths) == (1, (3.0,), (3,))


# ---- episodes over fragments ---------------------------------------------------------------------------------------


def test_returns_are_exact_over_fragments() -> None:
    """1 + 1e16 + 1 - 1e16 is 2, though its parts lie in four fragments and float64 alone would say 0."""
    rewards = [1.0, 1e16, 1.0, -1e16]
    ends = [End.CONTINUES] * 3 + [End.TERMINATED]
    lanes = HandMadeLanes([tick(i + 1, r, e) for i, (r, e) in enumerate(zip(rewards, ends, strict=True))])
    rollout, buffer = rollout_of(lanes, 1)
    reports = [fill(rollout, buffer) for _ in rewards]
    assert [report.episode_returns for report in reports] == [(), (), (), (2.0,)]
    assert [report.episode_lengths for report in reports] == [(), (), (), (4,)]


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
@pytest.mark.parametrize("num_before", range(6))
def test_state_between_fragments_is_all_there_is(name: str, vectorise: str, num_before: int) -> None:
    """Lanes and rollout put back from the wire, at any place in an episode, fill the next fragments bit for bit."""
    lanes, twin = (lanes_of(name, 2, vectorise=vectorise, kwargs={"length": 3}) for _ in range(2))
    lanes.start()
    rollout, buffer = rollout_of(lanes, 3)  # some fragment ends with an episode
    for _ in range(num_before):
        fill(rollout, buffer)
    saved = unpack_plain(pack_plain({"lanes": lanes.snapshot(), "rollout": rollout.state()}))
    assert saved["lanes"] is not None
    twin.restore(saved["lanes"])
    rollout_twin, buffer_twin = rollout_of(twin, 3)
    rollout_twin.set_state(saved["rollout"])
    for _ in range(4):
        assert fill(rollout, buffer) == fill(rollout_twin, buffer_twin)
        assert rows_of(buffer) == rows_of(buffer_twin)
        for name_, part in buffer.observation.items():
            assert (part == buffer_twin.observation[name_]).all()


def test_time_is_told_apart() -> None:
    """policy_ns and env_ns are what passed in each, on the clock; beats precede ticks and count on when restored."""
    clock, beats = ManualClock(), []

    class SlowPolicy(ScriptedPolicy):
        def act(self, observation: Mapping[str, NDArray[Any]], noise: NDArray[np.float32]) -> Acted:
            clock.advance(0.001)
            return super().act(observation, noise)

    class SlowLanes(HandMadeLanes):
        def step(self, action: NDArray[Any]) -> Tick:
            beats.append("step")
            clock.advance(0.01)
            return super().step(action)

    lanes: Lanes = SlowLanes([tick(i + 1, 1.0) for i in range(6)])  # type: ignore[assignment]
    layout = FragmentLayout(num_rows=3, num_lanes=1, observation=lanes.observation, action=lanes.action)
    policy: Any = SlowPolicy(np.zeros((1, 1, 1), np.int64))
    rollout, restored = (
        Rollout(lanes, policy, FragmentBuffer(layout), clock, void_broken=True, beat=beats.append)  # type: ignore[arg-type]
        for _ in range(2)
    )
    report = rollout.fill(np.zeros((3, 1), np.float32))
    assert (report.policy_ns, report.env_ns) == (3_000_000, 30_000_000)
    restored.set_state(rollout.state())
    restored.fill(np.zeros((3, 1), np.float32))
    assert beats == [0, "step", 1, "step", 2, "step", 3, "step", 4, "step", 5, "step"]
