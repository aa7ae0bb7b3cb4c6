"""An order to the group of ranks: who got which fragments, what they answered, and what that comes to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum

from deploy.conductor.messages import Handle, Held, Share, Update
from learner.reports import (
    AuditOrder,
    FragmentKey,
    FragmentVerdict,
    OrderStatus,
    UpdateReport,
    share_of,
)


class Judgement(StrEnum):
    """What the answers of all ranks to one order come to."""

    MADE = "made"  # every answer says so, with one digest
    PARTLY_MADE = "partly_made"  # some closed the update, which needed everyone; others failed while closing it
    DISPUTED = "disputed"  # together they found that something is wrong, and stand where they stood before
    DIVERGED = "diverged"  # some hold the update and others do not want it, or they hold different ones
    FAILED = "failed"  # nobody made it
    LOST = "lost"  # nobody is left who could answer


@dataclass(slots=True, kw_only=True)
class Order:
    """One order, told to every rank of the group at once.

    Attributes:
        told: the command.
        ranks: whom, in the order of places.
        held: its fragments in the order of actors.
        reports: answers, by rank.
        weights: the publication of place 0, if it came.
        lost: ranks that were lost before the order was judged, whether or not they had answered.
        void: an order before it was not made, so this one comes to nothing, whatever is answered.
        hurried: those who had not answered were told to hurry.
    """

    told: Update
    ranks: tuple[int, ...]
    held: tuple[Held, ...]
    reports: dict[int, UpdateReport] = field(default_factory=dict)
    weights: Handle | None = None
    lost: set[int] = field(default_factory=set)
    void: bool = False
    hurried: bool = False

    @property
    def update(self) -> int:
        """Number of the update."""
        return self.told.update

    @property
    def pending(self) -> list[int]:
        """Ranks that have neither answered nor been lost."""
        return [rank for rank in self.ranks if rank not in self.reports and rank not in self.lost]

    @property
    def made_by(self) -> list[int]:
        """Ranks that made it, in the order of places."""
        return [r for r in self.ranks if r in self.reports and self.reports[r].status is OrderStatus.MADE]

    def judge(self) -> Judgement:
        """What the answers come to, once nobody is pending."""
        statuses = {report.status for report in self.reports.values()}
        digests = {self.reports[rank].state_digest for rank in self.made_by}
        if not statuses:
            return Judgement.LOST
        if len(digests) > 1 or {OrderStatus.MADE, OrderStatus.DISPUTED} <= statuses:
            return Judgement.DIVERGED
        if statuses == {OrderStatus.MADE}:
            return Judgement.MADE
        if OrderStatus.MADE in statuses:
            return Judgement.PARTLY_MADE
        return Judgement.DISPUTED if OrderStatus.DISPUTED in statuses else Judgement.FAILED

    def merged(self) -> UpdateReport:
        """The report of the whole group: verdicts of all shares in the order of actors, gaps summed, the largest lag,
        everything else from place 0, or from the first place that made it.

        The update was closed by everyone, so fragments of a rank that was lost before it told its verdicts were
        trained on: they count as accepted.
        """
        first = self.reports[self.made_by[0]]
        verdicts = [verdict for place, rank in enumerate(self.ranks) for verdict in self._verdicts(place, rank)]
        answers = self.reports.values()
        return dataclasses.replace(
            first,
            verdicts=tuple(verdicts),
            gaps=sum(report.gaps for report in answers),
            lag=max(report.lag for report in answers),
        )

    def _verdicts(self, place: int, rank: int) -> tuple[FragmentVerdict, ...]:
        share = share_of(len(self.held), place, len(self.ranks))
        report = self.reports.get(rank)
        if report is not None and len(report.verdicts) == len(share):
            return report.verdicts
        return tuple(
            FragmentVerdict(refusal="", detail="", num_valid=self.held[index].summary.num_valid) for index in share
        )


def compose_order(
    held: tuple[Held, ...], ranks: tuple[int, ...], *, update: int, attempt: int, term: int, version: int, audits: int
) -> Order:
    """An order of `held` to `ranks`; one rank is audited every `audits` updates (0 = never)."""
    audit = audit_order(update, ranks, every=audits)
    shares = [share_of(len(held), place, len(ranks)) for place in range(len(ranks))]
    told = Update(
        update=update,
        attempt=attempt,
        term=term,
        version=version,
        keys=tuple(_key(each) for each in held),
        shares=tuple(
            Share(
                rank=rank,
                frames=tuple(held[index].frame for index in share),
                audited_frames=tuple(held[index].frame for index in shares[ranks.index(audit.audited)])
                if audit is not None and rank in audit.auditors
                else (),
            )
            for rank, share in zip(ranks, shares, strict=True)
        ),
        audit=audit,
    )
    return Order(told=told, ranks=ranks, held=held)


def audit_order(update: int, ranks: tuple[int, ...], *, every: int) -> AuditOrder | None:
    """Who is audited in `update`: each rank in turn, by the next two (of two by the other, alone by nobody)."""
    if every == 0 or update % every:
        return None
    place, count = (update // every) % len(ranks), len(ranks)
    auditors = tuple(ranks[(place + step) % count] for step in range(1, min(count, 3)))
    return AuditOrder(audited=ranks[place], auditors=auditors)


def _key(held: Held) -> FragmentKey:
    summary = held.summary
    return FragmentKey(actor=summary.actor, incarnation=summary.incarnation, sequence=summary.sequence)
