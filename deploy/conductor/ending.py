"""When the run ends, and how: its steps are done, its target is reached, or somebody asked."""

from __future__ import annotations

from actors.evaluate import EvaluationResult
from common.errors import RunFailedError
from deploy.conductor.plan import Plan
from learner.reports import UpdateReport


class Ending:
    """What is known about the end so far.

    Args:
        plan: what to do.
        length: updates after which the run ends in any case; None = the plan says when.

    Attributes:
        update: number of updates after which the run ends; None while it is not known.
        stop_reason: why somebody asked for the end; "" if nobody did.
    """

    def __init__(self, plan: Plan, *, length: int | None = None) -> None:
        self.update: int | None = length
        self._length = length
        self.stop_reason = ""
        self._plan = plan
        self._reached: float | None = None

    def judge(self, result: EvaluationResult | None) -> bool:
        """Take a periodic evaluation; returns whether it reaches the target."""
        target = self._plan.stop_at_return
        if result is None or target is None or result.mean < target:
            return False
        self._reached = result.mean
        return True

    def complete(self, env_steps: int) -> bool:
        """Whether the run has what it was for, after `env_steps` steps."""
        if self._length is not None:
            return False
        return env_steps >= self._plan.total_steps or self._reached is not None

    def reopen(self, evaluation: EvaluationResult | None) -> None:
        """A rollback, to weights that were judged by `evaluation`: the end is open again, unless these reach it."""
        self.update = None
        self._reached = None
        self.judge(evaluation)

    def status(self, *, update: int, env_steps: int) -> tuple[str, str]:
        """Status and verdict of a run that has written its last checkpoint, of `update`."""
        if self.stop_reason and not self.complete(env_steps):
            return "interrupted", f"{self.stop_reason}: checkpointed at update {update}, resumable"
        if self._reached is None:
            return "finished", f"{env_steps:,} steps done"
        return "finished", f"mean return {self._reached:g} reached the target {self._plan.stop_at_return:g}"


class Skips:
    """Updates in a row that committed no gradient step.

    Args:
        at_most: with so many the run is given up; 0 never gives up.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._in_a_row = 0

    def take(self, report: UpdateReport) -> RunFailedError | None:
        """One more update; returns what ends the run, if it was one too many without a step."""
        self._in_a_row = 0 if report.trained else self._in_a_row + 1
        if not self._in_a_row >= self._at_most > 0:
            return None
        verdict = f"{self._in_a_row} updates in a row committed no gradient step: "
        if report.skipped_steps:
            verdict += f"non-finite gradients (first in {report.skipped_at})"
            fix = "lower optimiser.learning_rate, or look for NaN in rewards; then resume"
        else:
            verdict += "no fragment of theirs held a transition to train on"
            fix = "see the record for refused fragments and broken episodes; then resume"
        return RunFailedError(verdict, fix=fix)

    def forget(self) -> None:
        """A rollback: none of them happened."""
        self._in_a_row = 0
