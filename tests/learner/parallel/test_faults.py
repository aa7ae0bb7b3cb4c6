"""Faults on purpose happen when and where they are told to, once, and to nobody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.clock import ManualClock
from learner.parallel.faults import FaultKind, RankFault, Saboteur, flip_bit

FLIPS = {
    FaultKind.FLIP_LOCAL: "computed",
    FaultKind.FLIP_OUTGOING: "sent",
    FaultKind.FLIP_REDUCED: "received",
    FaultKind.FLIP_PARAMETER: "stepped",
}


class Killed(Exception):
    """Instead of a signal."""


def killed() -> None:
    """In the place of SIGKILL."""
    raise Killed


def saboteur(kind: FaultKind, **fault: Any) -> Saboteur:
    """Of rank 0 in update 3."""
    return Saboteur((RankFault(kind=kind, rank=0, update=3, **fault),), ManualClock(), killed)


def ones(where: str, tampering: Saboteur, step: int, start: int) -> Tensor:
    """Eight ones that were handed to one of its methods."""
    values = torch.ones(8)
    if where == "stepped":
        tampering.stepped(step, values)
    else:
        getattr(tampering, where)(step, start, values)
    return values


@settings(deadline=None, max_examples=100)
@given(st.floats(width=32), st.integers(0, 31))
def test_a_flip_changes_one_bit_and_a_second_one_changes_it_back(value: float, bit: int) -> None:
    """Of one element, whatever it holds."""
    values = torch.tensor([1.0, value, 1.0])
    before = values.numpy().view(np.uint32).copy()
    flip_bit(values, 1, bit)
    assert (values.numpy().view(np.uint32) ^ before).tolist() == [0, 1 << bit, 0]
    flip_bit(values, 1, bit)
    assert values.numpy().view(np.uint32).tolist() == before.tolist()


@pytest.mark.parametrize("kind", FLIPS)
def test_a_bit_flips_where_it_is_told_to_and_nowhere_else(kind: FaultKind) -> None:
    """In its update, step, bucket and place in the step, in the first attempt; here of a bucket that begins at 2."""
    fault = saboteur(kind, step=1, element=7, bit=31)
    start = 0 if kind is FaultKind.FLIP_PARAMETER else 2
    for update, attempt in ((2, 0), (3, 0), (3, 1), (4, 0)):
        fault.began(update)
        for step in (0, 1):
            for where in FLIPS.values():
                hit = (update, attempt, step, where) == (3, 0, 1, FLIPS[kind])
                expected = [1.0] * 8
                if hit:
                    expected[7 - start] = -1.0
                assert ones(where, fault, step, start).tolist() == expected


@pytest.mark.parametrize("kind", [FaultKind.FLIP_LOCAL, FaultKind.FLIP_OUTGOING, FaultKind.FLIP_REDUCED])
@pytest.mark.parametrize("start", [0, 8, 90])
def test_a_bucket_without_the_element_is_left_alone(kind: FaultKind, start: int) -> None:
    """It begins behind the element, or ends before it."""
    fault = saboteur(kind, element=8 if start == 0 else 7)
    fault.began(3)
    assert ones(FLIPS[kind], fault, 0, start).tolist() == [1.0] * 8


def test_a_nan_is_put_into_the_local_gradient() -> None:
    """Before it is weighed."""
    fault = saboteur(FaultKind.NAN_GRADIENT, element=4)
    fault.began(3)
    assert torch.isnan(ones("computed", fault, 0, 0)).tolist() == [False] * 4 + [True] + [False] * 3
    assert not torch.isnan(ones("sent", fault, 0, 0)).any()


def test_a_fault_that_stays_happens_in_every_attempt() -> None:
    """`again`."""
    fault = saboteur(FaultKind.FLIP_REDUCED, bit=31, again=True)
    for _ in range(3):
        fault.began(3)
        assert ones("received", fault, 0, 0)[0] == -1.0


def test_a_rank_dies_before_its_backward_pass() -> None:
    """In its step and no other."""
    fault = saboteur(FaultKind.KILL, step=2)
    fault.began(3)
    fault.stepping(1)
    with pytest.raises(Killed):
        fault.stepping(2)


def test_a_delay_lets_time_pass_and_a_hang_lets_it_pass_for_ever() -> None:
    """On the clock given."""
    for kind, seconds in ((FaultKind.DELAY, 2.5), (FaultKind.HANG, 10**9)):
        clock = ManualClock()
        fault = Saboteur((RankFault(kind=kind, rank=0, update=0, seconds=2.5),), clock, killed)
        fault.began(0)
        fault.stepping(0)
        assert clock.now_ns() == seconds * 10**9


def test_a_fault_whose_mark_is_there_has_happened(tmp_path: Any) -> None:
    """It writes the reading of the clock; the process that takes the place of this one does nothing any more."""
    path = tmp_path / "mark"
    fault = RankFault(kind=FaultKind.DELAY, rank=0, update=0, seconds=1.0, mark=str(path))
    for expected in (1_000_000_000, 7):
        clock = ManualClock(start_ns=0 if expected > 7 else 7)
        again = Saboteur((fault,), clock, killed)
        again.began(0)
        again.stepping(0)
        assert clock.now_ns() == expected
    assert path.read_text() == "0"
