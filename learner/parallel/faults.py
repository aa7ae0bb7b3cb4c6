"""Faults on purpose: what a drill or a test does to a rank, and when. Without one, nothing here costs anything."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from common.clock import Clock

FOR_EVER_S = 10**9


class FaultKind(StrEnum):
    """What is done."""

    FLIP_REDUCED = "flip_reduced"  # a bit of what this rank got out of a reduce
    FLIP_OUTGOING = "flip_outgoing"  # a bit of what this rank puts into a reduce, after it was weighed
    FLIP_LOCAL = "flip_local"  # a bit of this rank's own gradient, before it was weighed: a wrong computation
    FLIP_PARAMETER = "flip_parameter"  # a bit of this rank's parameters, after a step
    NAN_GRADIENT = "nan_gradient"  # this rank's own gradient
    KILL = "kill"  # SIGKILL to itself
    HANG = "hang"  # never goes on
    DELAY = "delay"  # goes on after `seconds`


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """One fault.

    Attributes:
        kind: what.
        rank: who suffers it.
        update, step: when; in the first attempt at this update, unless `again`.
        element: of the flat gradient or parameters.
        bit: of that element, 0 = lowest of the mantissa, 31 = sign.
        seconds: of a delay.
        again: in every attempt.
        mark: a file that is written when it happens, with the reading of the monotonic clock (ns); a fault whose mark
            is there does not happen again, not even to the process that takes the place of this one. "" writes none.
    """

    kind: FaultKind
    rank: int
    update: int
    step: int = 0
    element: int = 0
    bit: int = 0
    seconds: float = 0.0
    again: bool = False
    mark: str = ""


class Tamper(Protocol):
    """Where a step can be interfered with. Each is called once a step (`sent`, `received` once a bucket)."""

    def began(self, update: int) -> None:
        """An attempt at `update` begins."""
        ...

    def stepping(self, step: int) -> None:
        """Before the backward pass."""
        ...

    def computed(self, step: int, start: int, values: Tensor) -> None:
        """The local gradient from element `start` on is complete, and not weighed yet."""
        ...

    def sent(self, step: int, start: int, values: Tensor) -> None:
        """It has been weighed, and is about to be reduced."""
        ...

    def received(self, step: int, start: int, values: Tensor) -> None:
        """It has been reduced, and is not digested yet."""
        ...

    def stepped(self, step: int, parameters: Tensor) -> None:
        """The optimiser has made the step."""
        ...


class Untouched:
    """No fault."""

    def began(self, update: int) -> None:
        """Nothing."""

    def stepping(self, step: int) -> None:
        """Nothing."""

    def computed(self, step: int, start: int, values: Tensor) -> None:
        """Nothing."""

    def sent(self, step: int, start: int, values: Tensor) -> None:
        """Nothing."""

    def received(self, step: int, start: int, values: Tensor) -> None:
        """Nothing."""

    def stepped(self, step: int, parameters: Tensor) -> None:
        """Nothing."""


class Saboteur:
    """Commits the faults of one rank."""

    def __init__(self, faults: tuple[RankFault, ...], clock: Clock, kill: Callable[[], None] | None = None) -> None:
        self._left = [fault for fault in faults if not (fault.mark and Path(fault.mark).exists())]
        self._clock = clock
        self._kill = kill or kill_this_process
        self._now: list[RankFault] = []

    def began(self, update: int) -> None:
        self._now = [fault for fault in self._left if fault.update == update]
        self._left = [fault for fault in self._left if fault.update != update or fault.again]

    def stepping(self, step: int) -> None:
        for fault in self._due(step, FaultKind.KILL, FaultKind.HANG, FaultKind.DELAY):
            mark(fault.mark, self._clock)
            if fault.kind is FaultKind.KILL:
                self._kill()
            self._clock.sleep(fault.seconds if fault.kind is FaultKind.DELAY else FOR_EVER_S)

    def computed(self, step: int, start: int, values: Tensor) -> None:
        for fault in self._due(step, FaultKind.NAN_GRADIENT):
            if start <= fault.element < start + len(values):
                mark(fault.mark, self._clock)
                values[fault.element - start] = torch.nan
        self._flip(FaultKind.FLIP_LOCAL, step, start, values)

    def sent(self, step: int, start: int, values: Tensor) -> None:
        self._flip(FaultKind.FLIP_OUTGOING, step, start, values)

    def received(self, step: int, start: int, values: Tensor) -> None:
        self._flip(FaultKind.FLIP_REDUCED, step, start, values)

    def stepped(self, step: int, parameters: Tensor) -> None:
        self._flip(FaultKind.FLIP_PARAMETER, step, 0, parameters.detach())

    def _due(self, step: int, *kinds: FaultKind) -> list[RankFault]:
        return [fault for fault in self._now if fault.step == step and fault.kind in kinds]

    def _flip(self, kind: FaultKind, step: int, start: int, values: Tensor) -> None:
        for fault in self._due(step, kind):
            if start <= fault.element < start + len(values):
                mark(fault.mark, self._clock)
                flip_bit(values, fault.element - start, fault.bit)


def mark(path: str, clock: Clock) -> None:
    """Say when a fault happens; nothing without a path."""
    if path:
        Path(path).write_text(str(clock.now_ns()), encoding="ascii")


def flip_bit(values: Tensor, element: int, bit: int) -> None:
    """Flip one bit of a float32 vector in place."""
    bits = values.view(torch.int32)
    bits[element] ^= (1 << bit) if bit < 31 else -(1 << 31)


def kill_this_process() -> None:
    """SIGKILL: nothing is said, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
