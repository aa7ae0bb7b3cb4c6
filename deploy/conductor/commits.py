"""What a commit changes, and what a rollback takes back: accounts, progress, the counts of what went wrong in a row."""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import RunFailedError
from deploy.conductor.accounts import SKIPPED, Accounts, Settlement
from deploy.conductor.cuts import Cuts
from deploy.conductor.ending import Skips
from deploy.conductor.fates import Fates
from deploy.conductor.messages import Held, Note, RecordUpdate
from deploy.conductor.orders import Order
from deploy.conductor.plan import Plan
from deploy.conductor.progress import Progress, Publications
from deploy.conductor.safe import Rollbacks, SafePoint
from learner.reports import UpdateReport


class Commits:
    """Commits orders, and undoes them.

    Args:
        plan: how many updates in a row may commit no step, how often training may be rolled back.
        progress, accounts, cuts, weights, fates: of the run, kept up here.

    Attributes:
        rollbacks: so far.
    """

    def __init__(
        self, plan: Plan, progress: Progress, accounts: Accounts, cuts: Cuts, weights: Publications, fates: Fates
    ) -> None:
        self.rollbacks = Rollbacks(plan.max_rollbacks)
        self._plan = plan
        self._progress = progress
        self._accounts = accounts
        self._weights = weights
        self._cuts = cuts
        self._fates = fates
        self._skips = Skips(plan.max_skipped_updates)

    def commit(self, order: Order) -> Iterator[RecordUpdate | Note | RunFailedError]:
        """An order that every rank agreed on. An error among what comes out ends the run."""
        report = order.merged()
        yield from self._refusals(order.held, report)
        settlement = _settlement(order.held, report)
        self._accounts.settle(settlement)
        for cut in self._cuts.unwritten:
            cut.settle(report.update, settlement)
        self.rollbacks.commit(report.update, trained=settlement.trained)
        self._progress.commit(report, steps=sum(held.summary.num_valid for held in order.held))
        published = None if order.weights is None else (report.version, order.weights)
        self._weights.advance(self._progress.committed, published)
        ledger = self._fates.commit(order, report.verdicts, term=report.term)
        yield RecordUpdate(report=report, chain=self._progress.chain, num_ranks=len(order.ranks), ledger=ledger)
        if report.skipped_steps:
            data = {"update": report.update, "steps": report.skipped_steps, "parameter": report.skipped_at}
            yield Note(kind="STEPS_SKIPPED", data=data)
        error = self._skips.take(report)
        if error is not None:
            yield error

    @staticmethod
    def _refusals(fragments: tuple[Held, ...], report: UpdateReport) -> Iterator[Note]:
        for held, verdict in zip(fragments, report.verdicts, strict=True):
            if verdict.refusal:
                data = {"actor": held.summary.actor, "reason": verdict.refusal, "detail": verdict.detail}
                yield Note(kind="FRAGMENT_REFUSED", data=data)

    def refuse_rollback(self, reason: str) -> RunFailedError | None:
        """What ends the run, if one more rollback is one too many; else the rollback is counted."""
        if self.rollbacks.begin(self._progress.committed):
            return None
        times, furthest = self._plan.max_rollbacks, self.rollbacks.furthest
        return RunFailedError(
            f"rolled back {times} times without getting beyond update {furthest}: {reason}",
            fix="see the record's SYNC_ and RANK_ events for who and where, mend that machine, then resume the run",
        )

    def undo(self, safe: SafePoint) -> None:
        """Back to `safe`, under a new term: what was trained since was not."""
        progress = self._progress
        self._accounts.undo(
            trained=self.rollbacks.undo(safe.update),
            updates=progress.committed - safe.update,
            steps=progress.env_steps - safe.env_steps,
        )
        progress.return_to(safe)
        self._weights.clear()
        self._skips.forget()


def _settlement(fragments: tuple[Held, ...], report: UpdateReport) -> Settlement:
    trained, dropped = 0, dict[str, int]()
    for held, verdict in zip(fragments, report.verdicts, strict=True):
        reason = verdict.refusal or ("" if report.trained else SKIPPED)
        if reason:
            dropped[reason] = dropped.get(reason, 0) + held.summary.num_valid
        else:
            trained += held.summary.num_valid
    return Settlement(trained=trained, dropped=dropped)
