"""The gradient steps of one update: made, computed again where an audit wants it, and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from learner.algorithms.outcome import Losses, Record, UpdateOutcome
from learner.audit import Audit
from learner.gradient_step import GradientStep


class Steps:
    """Makes the steps of one update, in order.

    Args:
        audit: what this rank recomputes in this update, if anything.
    """

    def __init__(self, step: GradientStep, audit: Audit | None) -> None:
        self._step = step
        self._audit = audit
        self._record = Record()

    def make(self, losses: Callable[[], Losses], audited: Callable[[], Losses]) -> Losses:
        """One step along the gradient of `losses`, this rank's own; returns them.

        Args:
            audited: those of the audited rank, made anew at each call.

        Raises:
            SyncError: the gradient could not be reduced.
        """
        number = self._record.num_steps
        if self._audit is not None:
            self._audit.before(number, lambda: audited().total)
        own = losses()
        watched = self._audit is not None and self._audit.watches(number)
        self._record.add(own, self._step.make(own.total, number, watched=watched))
        if self._audit is not None:
            self._audit.after(number)
        return own

    def outcome(self, explained_variance: float, *, stopped_early: bool = False) -> UpdateOutcome:
        """What all of them came to."""
        outcome = self._record.outcome(explained_variance, stopped_early=stopped_early)
        return replace(outcome, layer_norms=self._step.layer_norms)
