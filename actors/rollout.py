"""The stepping loop: lanes and policy fill one preallocated fragment.

    tick:  obs[t] ──policy──► action[t], log_prob[t], value[t] ──lanes──► reward[t], end[t], valid[t], obs[t+1]

Aligned lanes write row t at tick t. Lanes that restart within a tick (Gymnasium's SAME_STEP and DISABLED) need two rows
for an ended tick, the transition and the invalid row of its final observation, so each lane has its own row; the
fragment is full when the first lane is, and the remaining rows of the others stay invalid.

A recurrent policy keeps its lanes' state from tick to tick and over fragments. It is written down before row 0 and
zeroed after each invalid row, so a final observation is valued with the memory of its episode. Where rewards are
normalised each lane's discounted return goes over from fragment to fragment likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.lanes import Lanes, Tick
from actors.policy import Policy
from actors.stopwatch import Stopwatch
from common.clock import Clock
from common.compensated import NeumaierSum
from common.fragment import End, FragmentBuffer
from common.normalize import RunningReturns
from common.timings import FragmentTimings


class Beat(Protocol):
    """Told once per tick that the loop is alive."""

    def __call__(self, tick: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """What one fragment held.

    Attributes:
        num_valid: valid transitions.
        num_voided: transitions taken back because their episode broke.
        episode_returns: undiscounted, of the episodes that ended.
        episode_lengths: their transitions.
        policy_ns: spent in the policy.
        env_ns: spent in the environments.
        ticks: steps of all lanes.
    """

    num_valid: int
    num_voided: int
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]
    policy_ns: int
    env_ns: int
    ticks: int


class Rollout:
    """Fills fragments from one set of lanes; episodes run on from one fragment to the next.

    Args:
        returns: of the lanes, where rewards are normalised.
    """

    def __init__(
        self,
        lanes: Lanes,
        policy: Policy,
        buffer: FragmentBuffer,
        clock: Clock,
        *,
        void_broken: bool,
        beat: Beat,
        returns: RunningReturns | None = None,
    ) -> None:
        self._lanes = lanes
        self._policy = policy
        self._recurrent = policy.state_size > 0
        self._buffer = buffer
        self._clock = clock
        self._void_broken = void_broken
        self._beat = beat
        self._returns = returns
        self._stopwatch = Stopwatch(len(buffer.reward), lanes.num_lanes)
        self._episodes = _Episodes(lanes.num_lanes, self._stopwatch)
        self._final: dict[str, NDArray[Any]] = {}
        self._final_pending = np.zeros(lanes.num_lanes, dtype=bool)
        self._ticks = 0

    def fill(self, noise: NDArray[np.float32]) -> RolloutReport:
        """Fill all rows of the buffer; `noise` is [T, B, *noise_shape]."""
        self._episodes.begin_fragment()
        self._stopwatch.begin_fragment(self._clock.now_ns())
        self._policy_ns = self._env_ns = 0
        ticks_before = self._ticks
        if self._recurrent:
            self._buffer.core_state[...] = self._policy.state()
        if self._lanes.aligned:
            self._fill_aligned(noise)
        else:
            self._fill_unaligned(noise)
        if self._returns is not None:
            self._buffer.return_before[...] = self._returns.before
            self._returns.follow(self._buffer.reward, self._buffer.end, self._buffer.valid)
        returns, lengths = self._episodes.ended()
        return RolloutReport(
            num_valid=int(np.count_nonzero(self._buffer.valid)),
            num_voided=self._episodes.voided,
            episode_returns=returns,
            episode_lengths=lengths,
            policy_ns=self._policy_ns,
            env_ns=self._env_ns,
            ticks=self._ticks - ticks_before,
        )

    def _fill_aligned(self, noise: NDArray[np.float32]) -> None:
        buffer = self._buffer
        parts = buffer.observation
        for name, value in self._lanes.current.items():
            parts[name][0] = value
        for row in range(len(buffer.reward)):
            observation = {name: part[row] for name, part in parts.items()}
            tick, action = self._tick(observation, noise[row], row)
            buffer.action[row] = action
            for name, part in parts.items():
                part[row + 1] = tick.observation[name]
            buffer.reward[row] = tick.reward
            buffer.end[row] = tick.end
            buffer.valid[row] = tick.valid
            self._account(tick, np.full(len(tick.end), row))
        buffer.value[-1] = self._policy.values({name: part[-1] for name, part in parts.items()})

    def _tick(
        self, observation: dict[str, NDArray[Any]], noise: NDArray[np.float32], row: Any
    ) -> tuple[Tick, NDArray[Any]]:
        """One policy pass and one step of all lanes; writes log-probability and value at `row`.

        Lanes whose row was invalid go on without memory. Of lanes that restarted within the tick the final observation
        is still to be valued, so `_close_episodes` resets those.
        """
        start_ns = self._clock.now_ns()
        acted = self._policy.act(observation, noise)
        self._buffer.log_prob[row] = acted.log_prob
        self._buffer.value[row] = acted.value
        action = self._policy.head.to_environment(acted.action)
        middle_ns = self._clock.now_ns()
        self._beat(self._ticks)
        tick = self._lanes.step(action)
        self._ticks += 1
        self._policy_ns += middle_ns - start_ns
        end_ns = self._clock.now_ns()
        self._env_ns += end_ns - middle_ns
        self._stopwatch.tick(middle_ns, end_ns)
        if self._recurrent:
            self._policy.reset(~tick.valid)
        return tick, acted.action

    def _account(self, tick: Tick, row: NDArray[np.int64]) -> None:
        """Episode sums; a broken episode loses its rows of this fragment where the policy of the run says so."""
        self._episodes.add(tick, row)
        if (tick.end == End.BROKEN).any():
            for lane in np.flatnonzero(tick.end == End.BROKEN):
                if self._void_broken:
                    rows = slice(self._episodes.first_row[lane], row[lane])
                    self._episodes.voided += int(np.count_nonzero(self._buffer.valid[rows, lane]))
                    self._buffer.valid[rows, lane] = 0
                    self._buffer.reward[rows, lane] = 0
                self._episodes.forget(int(lane), int(row[lane]) + 1)

    def _fill_unaligned(self, noise: NDArray[np.float32]) -> None:
        buffer, num_rows = self._buffer, len(self._buffer.reward)
        every = np.arange(self._lanes.num_lanes)
        row = self._open_with_finals()
        while (row < num_rows).all():
            current = {name: part.copy() for name, part in self._lanes.current.items()}
            tick, action = self._tick(current, noise[row, every], (row, every))
            buffer.action[row, every] = action
            for name, part in buffer.observation.items():
                part[row, every] = current[name]
                part[row + 1, every] = tick.observation[name]
            buffer.reward[row, every] = tick.reward
            buffer.end[row, every] = tick.end
            buffer.valid[row, every] = tick.valid
            self._account(tick, row)
            row = row + 1
            if tick.restart is not None:
                row = self._close_episodes(tick, tick.restart.lanes, row)
        self._pad(row)

    def _open_with_finals(self) -> NDArray[np.int64]:
        """Lanes whose episode ended on the last row of the previous fragment begin with its invalid row."""
        pending = np.flatnonzero(self._final_pending)
        for name, part in self._buffer.observation.items():
            if len(pending):
                part[0, pending] = self._final[name][pending]
        row = np.zeros(self._lanes.num_lanes, dtype=np.int64)
        if len(pending):
            self._void_row(row, pending, np.zeros(len(pending), dtype=np.float32))
            row[pending] = 1
            if self._recurrent:
                self._policy.reset(pending)
        self._final_pending[:] = False
        return row

    def _close_episodes(self, tick: Tick, ended: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give each ended lane its invalid row (here, or first in the next fragment)."""
        finals = {name: part[ended] for name, part in tick.observation.items()}
        values = self._policy.values(finals, ended)
        room = row[ended] < len(self._buffer.reward)
        self._void_row(row, ended[room], values[room])
        if self._recurrent:
            self._policy.reset(ended[room])
        for name, part in tick.observation.items():
            self._final.setdefault(name, np.zeros_like(part))[ended[~room]] = part[ended[~room]]
        self._final_pending[ended[~room]] = True
        after = row.copy()
        after[ended[room]] += 1
        return after

    def _void_row(self, row: NDArray[np.int64], lanes: NDArray[np.int64], value: NDArray[np.float32]) -> None:
        at = (row[lanes], lanes)
        self._buffer.action[at] = 0
        for array in (self._buffer.reward, self._buffer.end, self._buffer.valid, self._buffer.log_prob):
            array[at] = 0
        self._buffer.value[at] = value

    def _pad(self, row: NDArray[np.int64]) -> None:
        """Rows no lane could fill: invalid, holding the observation at which the lane stands."""
        buffer, num_rows = self._buffer, len(self._buffer.reward)
        current = self._lanes.current
        for lane, first in enumerate(row):
            if not self._final_pending[lane]:
                for name, part in buffer.observation.items():
                    part[first:, lane] = current[name][lane]
            for array in (buffer.action, buffer.reward, buffer.end, buffer.valid, buffer.log_prob):
                array[first:num_rows, lane] = 0
        last = {name: part[-1] for name, part in buffer.observation.items()}
        values = self._policy.values(last)
        for lane, first in enumerate(row):
            buffer.value[first:, lane] = values[lane]

    def timings(self) -> FragmentTimings:
        """Of the ticks and episodes of the latest fragment; in no snapshot and no summary."""
        return self._stopwatch.timings()

    def state(self) -> dict[str, Any]:
        """What the loop remembers between fragments, as plain values."""
        return {
            "episodes": self._episodes.state(),
            "final": {name: part.copy() for name, part in self._final.items()},
            "final_pending": self._final_pending.copy(),
            "ticks": self._ticks,
            "core_state": self._policy.state(),
            "returns": None if self._returns is None else self._returns.before.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` took."""
        self._episodes.set_state(state["episodes"])
        self._stopwatch.forget_beginnings()
        self._final = dict(state["final"])
        self._final_pending = state["final_pending"].copy()
        self._ticks = state["ticks"]
        if self._recurrent:
            self._policy.set_state(state["core_state"])
        if self._returns is not None:
            self._returns.before = state["returns"].copy()


class _Episodes:
    """Returns and lengths of the episodes under way, by lane."""

    def __init__(self, num_lanes: int, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._returns = NeumaierSum(num_lanes)
        self._lengths = np.zeros(num_lanes, dtype=np.int64)
        self.first_row = np.zeros(num_lanes, dtype=np.int64)
        self.voided = 0
        self._ended: list[tuple[float, int]] = []

    def begin_fragment(self) -> None:
        self.first_row[:] = 0
        self.voided = 0
        self._ended = []

    def add(self, tick: Tick, row: NDArray[np.int64]) -> None:
        self._returns.add(tick.reward)
        self._lengths += tick.valid
        ended = (tick.end != End.CONTINUES) & (tick.end != End.BROKEN)
        if not ended.any():
            return
        lanes = np.flatnonzero(ended)
        values = self._returns.value()
        self._ended.extend((float(values[lane]), int(self._lengths[lane])) for lane in lanes)
        self._stopwatch.end_episodes(lanes)
        self._returns.clear(ended)
        self._lengths[lanes] = 0
        self.first_row[lanes] = row[lanes] + 1

    def forget(self, lane: int, next_row: int) -> None:
        """The episode under way on `lane` broke: it counts nowhere."""
        only = np.zeros(len(self._lengths), dtype=bool)
        only[lane] = True
        self._stopwatch.drop_episode(lane)
        self._returns.clear(only)
        self._lengths[lane] = 0
        self.first_row[lane] = next_row

    def ended(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        return tuple(r for r, _ in self._ended), tuple(n for _, n in self._ended)

    def state(self) -> dict[str, Any]:
        return {"returns": self._returns.state(), "lengths": self._lengths.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._returns.set_state(state["returns"])
        self._lengths = state["lengths"].copy()
