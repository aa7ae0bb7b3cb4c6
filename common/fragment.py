"""A fragment: T rows of B lanes, the unit that actors make and learners take.

    obs[T+1, B, ...]   action[T, B, ...]   reward[T, B]   end[T, B]   valid[T, B]   log_prob[T, B]   value[T+1, B]
    core_state[B, S], where the policy is recurrent   return_before[B], where rewards are normalised

An episode of L transitions takes L+1 rows. Its last row holds the final observation and no transition (`valid` 0);
the row after that holds the reset observation:

    row       0          1           2            3
    obs       reset      s1          s2 (final)   reset of the next episode
    valid     1          1           0            1
    end       CONTINUES  TERMINATED  CONTINUES    ...

So `obs[t+1]` is the true next observation of every valid row t, and every recursion is cut where `end != 0` or
`valid == 0`. Invalid rows count in no loss, statistic, counter or return.

`core_state` is the recurrent state *before* row 0. An unroll of row t = 0, 1, ... zeroes the state before row t where
row t-1 was invalid, so the final observation (row 2 above) is still seen with the memory of its episode, and the reset
observation (row 3) with none. `return_before` is likewise the discounted return that row 0 goes on from.

On the wire a fragment is a frame of `common.frames`, filled in place by the actor and viewed in place by the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import WireError
from common.frames import ArrayEntry, FrameBuffer, FrameLayout, decode_frame
from common.records import record_from_plain, record_to_plain
from common.specs import ArraySpec, SpaceSpec
from common.wire import Buffer


class End(IntEnum):
    """How a row ends its episode. Codes are on the wire: append only, never reused."""

    CONTINUES = 0
    TERMINATED = 1  # also when an environment says both: there is nothing to bootstrap from
    TRUNCATED = 2
    BROKEN = 3  # environment or actor failed; the episode is void: cut, no bootstrap, never valid


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentLayout:
    """What every fragment of a run looks like.

    Attributes:
        num_rows: T, at least 1.
        num_lanes: B, at least 1.
        observation: parts, each one array named as in the spec.
        action: Box actions are stored float32 (the policy's, before squashing or clipping), others as their spec says.
        state_size: S, numbers of recurrent state of a lane; 0 where the policy is feed-forward.
        returns: whether rewards are normalised, by statistics of discounted returns.
    """

    num_rows: int
    num_lanes: int
    observation: SpaceSpec
    action: ArraySpec
    state_size: int = 0
    returns: bool = False

    def frame_layout(self) -> FrameLayout:
        """The arrays of a frame, in order. Raises WireError if they cannot be one frame."""
        if self.num_rows < 1 or self.num_lanes < 1:
            raise WireError(f"fragment layout: got {self.num_rows} rows of {self.num_lanes} lanes", allowed="1 or more")
        if self.state_size < 0:
            raise WireError("fragment layout: state_size", got=self.state_size, allowed="0 or more")
        rows, rows_and_one = (self.num_rows, self.num_lanes), (self.num_rows + 1, self.num_lanes)
        action_dtype = "float32" if self.action.kind == "box" else self.action.dtype
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (part.dtype, (*rows_and_one, *part.shape)) for name, part in self.observation
        }
        arrays |= {
            "action": (action_dtype, (*rows, *self.action.shape)),
            "reward": ("float32", rows),
            "end": ("uint8", rows),
            "valid": ("uint8", rows),
            "log_prob": ("float32", rows),
            "value": ("float32", rows_and_one),
        }
        if self.state_size:
            arrays["core_state"] = ("float32", (self.num_lanes, self.state_size))
        if self.returns:
            arrays["return_before"] = ("float64", (self.num_lanes,))
        return FrameLayout.of(arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentHeader:
    """Who made a fragment, from what, when.

    Attributes:
        run: the run's name.
        actor: index of the actor.
        lease: token of the process that made it; in no digest of training.
        incarnation: life of the actor's streams; with `actor` and `sequence` it names the fragment.
        sequence: number of the fragment in its incarnation, from 0.
        term: learner's term that the weights belong to.
        version: weights that chose the actions.
        update: update that it is collected for.
        num_rows: T.
        num_lanes: B.
        num_valid: valid transitions, `valid.sum()`.
        start_ns: when collecting began, nanoseconds on the clock `clock_id`.
        end_ns: when it ended, on the same clock.
        clock_id: never compare readings of two clocks.
    """

    run: str
    actor: int
    lease: str
    incarnation: int
    sequence: int
    term: int
    version: int
    update: int
    num_rows: int
    num_lanes: int
    num_valid: int
    start_ns: int
    end_ns: int
    clock_id: str

    def to_plain(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return record_to_plain(self)

    @staticmethod
    def from_plain(plain: object) -> FragmentHeader:
        """The inverse of `to_plain`. Raises WireError naming the field."""
        return record_from_plain(FragmentHeader, plain, what="fragment header")


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSummary:
    """What the driver learns of a fragment without touching its data; returned beside the frame.

    Attributes:
        actor, lease, incarnation, sequence, term, version, update, num_valid, start_ns, end_ns: as in the header.
        num_voided: valid transitions that this fragment's broken episodes lost.
        num_bytes: size of the frame.
        episode_returns: undiscounted returns of the episodes that ended in this fragment.
        episode_lengths: their transitions, in the same order.
        policy_ns: spent in the policy's forward passes.
        env_ns: spent in the environments.
        gc_pause_ns: each pause of the garbage collector while collecting.
        digest: of the arrays, without the header: the same whenever the same fragment is made again.
        metrics_port: where the actor serves `/metrics`; 0 if it does not.
        ticks: steps of all lanes.
        waited_ns, cpu_ns, delay_ns, major_faults: of the actor's `Stint` for it: no part of what it is.
    """

    actor: int
    lease: str
    incarnation: int
    sequence: int
    term: int
    version: int
    update: int
    num_valid: int
    num_voided: int
    num_bytes: int
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]
    start_ns: int
    end_ns: int
    policy_ns: int
    env_ns: int
    gc_pause_ns: tuple[int, ...]
    metrics_port: int = 0
    digest: int = 0
    ticks: int = 0
    waited_ns: int = field(default=0, compare=False)
    cpu_ns: int = field(default=0, compare=False)
    delay_ns: int = field(default=0, compare=False)
    major_faults: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fragment:
    """A decoded fragment; its arrays are read-only views of the document.

    Attributes:
        header: who made it.
        observation: by part, `[T+1, B, *shape]`.
        action: `[T, B, *shape]`.
        reward: float32 `[T, B]`, 0 where not valid.
        end: uint8 `[T, B]`, codes of `End`.
        valid: uint8 `[T, B]`, 1 where the row is a transition.
        log_prob: float32 `[T, B]`, of the action under the weights that chose it.
        value: float32 `[T+1, B]`, of the observation under the same weights.
        core_state: float32 `[B, S]`, recurrent state before row 0; `[B, 0]` where the policy is feed-forward.
        return_before: float64 `[B]`, discounted return (of `common.normalize`) before row 0; 0 where rewards are not
            normalised.
        digest: xxh3-64 of the frame.
    """

    header: FragmentHeader
    observation: dict[str, NDArray[Any]]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    end: NDArray[np.uint8]
    valid: NDArray[np.uint8]
    log_prob: NDArray[np.float32]
    value: NDArray[np.float32]
    core_state: NDArray[np.float32]
    return_before: NDArray[np.float64]
    digest: int


class FragmentBuffer:
    """A frame that an actor fills row by row and seals; reused for its next fragment.

    The attributes are writable views named and shaped as in `Fragment`. Sealing does not clear them.
    """

    def __init__(self, layout: FragmentLayout) -> None:
        self.layout = layout
        self._frame = FrameBuffer(layout.frame_layout(), "fragment")
        arrays = self._frame.arrays
        self.observation: dict[str, NDArray[Any]] = {name: arrays[name] for name, _ in layout.observation}
        self.action: NDArray[Any] = arrays["action"]
        self.reward: NDArray[np.float32] = arrays["reward"]
        self.end: NDArray[np.uint8] = arrays["end"]
        self.valid: NDArray[np.uint8] = arrays["valid"]
        self.log_prob: NDArray[np.float32] = arrays["log_prob"]
        self.value: NDArray[np.float32] = arrays["value"]
        self.core_state = _core_state(arrays, layout)
        self.return_before = _return_before(arrays, layout)

    @property
    def num_bytes(self) -> int:
        """Bytes of the sealed document."""
        return self._frame.num_bytes

    def digest(self) -> int:
        """Of the arrays as they are, 63 bits of xxh3-64: a run registry's integers have a sign."""
        return self._frame.payload_digest() >> 1

    def seal(self, header: FragmentHeader) -> NDArray[np.uint8]:
        """The document, a view that the next seal overwrites.

        Raises:
            WireError: whatever `decode_fragment` would refuse: the sender hears of it first.
        """
        _check_rows(header, self.layout, self.end, self.valid)
        return self._frame.seal(header.to_plain())


def decode_fragment(document: Buffer, layout: FragmentLayout) -> Fragment:
    """Verify a frame and view it as a fragment of `layout`; nothing is copied.

    Raises:
        WireError: not a sound frame, another layout (names the array), codes out of range, counts that disagree.
    """
    frame = decode_frame(document, kind="fragment")
    _check_layout(frame.layout, layout.frame_layout())
    header = FragmentHeader.from_plain(frame.header)
    arrays = frame.arrays
    _check_rows(header, layout, arrays["end"], arrays["valid"])
    return Fragment(
        header=header,
        observation={name: arrays[name] for name, _ in layout.observation},
        action=arrays["action"],
        reward=arrays["reward"],
        end=arrays["end"],
        valid=arrays["valid"],
        log_prob=arrays["log_prob"],
        value=arrays["value"],
        core_state=_core_state(arrays, layout),
        return_before=_return_before(arrays, layout),
        digest=frame.digest,
    )


def _core_state(arrays: Mapping[str, NDArray[Any]], layout: FragmentLayout) -> NDArray[np.float32]:
    """The frame's array, or one without elements where the frame has none."""
    return arrays["core_state"] if layout.state_size else np.zeros((layout.num_lanes, 0), np.float32)


def _return_before(arrays: Mapping[str, NDArray[Any]], layout: FragmentLayout) -> NDArray[np.float64]:
    return arrays["return_before"] if layout.returns else np.zeros(layout.num_lanes)


def _check_layout(got: FrameLayout, allowed: FrameLayout) -> None:
    if got == allowed:
        return
    for got_entry, allowed_entry in zip(got.entries, allowed.entries, strict=False):
        if got_entry != allowed_entry:
            raise WireError(
                f"fragment: array {allowed_entry.name}", got=_words(got_entry), allowed=_words(allowed_entry)
            )
    raise WireError("fragment: number of arrays", got=len(got.entries), allowed=len(allowed.entries))


def _words(entry: ArrayEntry) -> str:
    return f"{entry.name} {entry.dtype} {list(entry.shape)} at {entry.offset}"


def _check_rows(
    header: FragmentHeader, layout: FragmentLayout, end: NDArray[np.uint8], valid: NDArray[np.uint8]
) -> None:
    who = f"fragment {header.sequence} of actor {header.actor}, incarnation {header.incarnation}"
    got, allowed = (header.num_rows, header.num_lanes), (layout.num_rows, layout.num_lanes)
    if got != allowed:
        raise WireError(f"{who}: rows and lanes of its header", got=got, allowed=allowed)
    if end.max() > max(End):
        raise WireError(f"{who}: end", got=int(end.max()), allowed=[int(code) for code in End])
    if valid.max() > 1:
        raise WireError(f"{who}: valid", got=int(valid.max()), allowed="0 or 1")
    num_valid = int(np.count_nonzero(valid))
    if num_valid != header.num_valid:
        raise WireError(f"{who}: num_valid of its header", got=header.num_valid, allowed=f"{num_valid}, its valid rows")
    if np.any(valid[end == End.BROKEN]):
        raise WireError(f"{who}: a broken row is valid", got="valid 1, end BROKEN", allowed="valid 0 where BROKEN")
