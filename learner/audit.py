"""Computing a local gradient again: what the digests of *reduced* gradients cannot see is a wrong summand.

The audited rank computes the gradient of one step twice, its auditors compute it twice from the audited rank's
fragments; equal hardware, code and thread counts give equal bits. The group judges (`judge_audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from common.clock import thread_cpu_ns
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.parallel.group import Group
from learner.parallel.verdict import Recomputed

SPREAD = 7_919  # a prime: over the updates every step of an update is audited


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPart:
    """One rank's part in an audit.

    Attributes:
        update: of which a step is audited.
        place: of the audited rank.
        accepted: the fragments of the audited rank, for an auditor.
    """

    update: int
    place: int
    accepted: Sequence[Accepted] = ()


def audited_step(update: int, num_steps: int) -> int:
    """Which step of an update is audited when it is its turn."""
    return update * SPREAD % max(1, num_steps)


class Audit:
    """Carries the part out, in the middle of an update.

    Args:
        part: what to do.
        num_steps: of the update; one of them is audited.
        matches: whether this rank holds the audited rank's rows.
    """

    def __init__(self, part: AuditPart, step: GradientStep, group: Group, *, num_steps: int, matches: bool) -> None:
        self._step = step
        self._group = group
        self._number = audited_step(part.update, num_steps)
        self._audited = group.place == part.place
        self._takes_part = self._audited or (matches and group.compares)
        self._second = 0

    def watches(self, number: int) -> bool:
        """Whether this rank's gradient of step `number` is the audited one."""
        return self._audited and number == self._number

    def before(self, number: int, loss: Callable[[], Tensor | None]) -> None:
        """Compute the audited rank's part of step `number` again, if it is due; `loss` makes it anew at each call."""
        if number != self._number or not self._takes_part:
            return
        start_ns = thread_cpu_ns()
        self._second = self._step.recompute(loss())
        if not self._audited:
            self._group.recomputed(number, Recomputed(first=self._step.recompute(loss()), second=self._second))
        self._group.effort.audit_ns += thread_cpu_ns() - start_ns

    def after(self, number: int) -> None:
        """The step has been made: what was used and what was recomputed go into the verdict."""
        if self.watches(number):
            self._group.recomputed(number, Recomputed(first=self._group.local_digest(), second=self._second))
