"""Where a run that is made again parts from its record: every fragment and every update, as they come.

fragment made      its valid transitions and the digest of its arrays are those of the ledger, or it is the difference
update committed   its digests are those of the record, or it is the difference

The first difference ends the comparison: what follows depends on it. A fragment comes after the updates whose weights
made it, so one that differs was made by equal weights, from equal seeds, in an environment that did something else (or
by a processor or library that computes something else).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import RunFailedError
from common.fragment import FragmentSummary
from common.ledger import FragmentName, Ledger, LedgerFragment
from common.runs import UpdateRecord
from deploy.compare import UpdateDifference, same_result, side
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Event, FragmentMade, Note, RecordUpdate, RollBack, WriteCheckpoint
from learner.reports import UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentDifference:
    """The first fragment that is not the one of the record.

    Attributes:
        actor, incarnation, sequence: name it.
        weights: updates contained in the weights that acted; up to there everything was the same.
        a, b: `num_valid` and `digest` of the recorded fragment, and of the one made now.
    """

    actor: int
    incarnation: int
    sequence: int
    weights: int
    a: dict[str, Any]
    b: dict[str, Any]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        name = {"actor": self.actor, "incarnation": self.incarnation, "sequence": self.sequence}
        return {**name, "weights": self.weights, "a": self.a, "b": self.b}


class Diverged(Exception):
    """What is made again is not what was recorded: no failure, but the answer, which ends the run that was to give it.

    Attributes:
        difference: the first.
    """

    def __init__(self, difference: FragmentDifference | UpdateDifference) -> None:
        self.difference = difference
        super().__init__(repr(difference))


class Check:
    """Stands where the record of a run stands, and compares instead of writing.

    Attributes:
        identical_through: last update that was the same; 0 before the first.
        fragments: how many were the same.
    """

    def __init__(self, ledger: Ledger, updates: Iterable[UpdateRecord], *, num_ranks: int) -> None:
        self.identical_through = 0
        self.fragments = 0
        self._fragments: Mapping[FragmentName, LedgerFragment] = {each.name: each for each in ledger.fragments}
        self._updates = {update.update: update for update in updates}
        self._num_ranks = num_ranks

    def observe(self, event: Event, conductor: Conductor) -> None:
        """Take an event that the conductor has taken in. Raises Diverged."""
        if isinstance(event, FragmentMade):
            self.compare_fragment(event.summary)

    def commit(self, command: RecordUpdate, conductor: Conductor) -> None:
        """Take an update that every rank of the group agreed on. Raises Diverged."""
        self.compare_update(command.report, env_steps=conductor.env_steps, trained=conductor.accounts.trained)

    def roll_back(self, command: RollBack) -> None:
        """Nothing that was compared may be taken back."""
        raise RunFailedError(
            f"update {command.update + 1} could not be made again: the learner was rolled back",
            got=command.reason,
            fix="reproduce once more; if it happens again, look at the events that were told",
        )

    def note(self, note: Note) -> None:
        """Nothing is recorded."""

    def save(self, command: WriteCheckpoint) -> None:
        """Nothing is saved."""

    def close(self, conductor: Conductor) -> None:
        """Nothing is left."""

    def compare_fragment(self, made: FragmentSummary) -> None:
        """Raises Diverged if it is not the fragment of that name in the ledger."""
        recorded = self._fragments[made.actor, made.incarnation, made.sequence]
        digests_known = bool(recorded.digest and made.digest)
        if recorded.num_valid != made.num_valid or (digests_known and recorded.digest != made.digest):
            raise Diverged(
                FragmentDifference(
                    actor=recorded.actor,
                    incarnation=recorded.incarnation,
                    sequence=recorded.sequence,
                    weights=recorded.weights,
                    a={"num_valid": recorded.num_valid, "digest": f"{recorded.digest:016x}"},
                    b={"num_valid": made.num_valid, "digest": f"{made.digest:016x}"},
                )
            )
        self.fragments += 1

    def compare_update(self, report: UpdateReport, *, env_steps: int, trained: int) -> None:
        """Raises Diverged if it did not leave the bits that are recorded."""
        recorded = self._updates[report.update + 1]
        made = UpdateRecord(
            run=recorded.run,
            update=report.update + 1,
            term=report.term,
            version=report.version,
            env_steps=env_steps,
            parameter_digest=report.parameter_digest,
            state_digest=report.state_digest,
            chain="",
            produced=recorded.produced,
            trained=trained,
            in_flight=recorded.in_flight,
            dropped=recorded.dropped,
            fragments_lost=recorded.fragments_lost,
            lag=float(report.lag),
            statistics={},
            num_ranks=self._num_ranks,
        )
        if not same_result(recorded, made):
            raise Diverged(UpdateDifference(update=made.update, a=side(recorded), b=side(made)))
        self.identical_through = made.update


def suspect_of(difference: FragmentDifference | UpdateDifference, *, same_fingerprint: bool) -> str:
    """What a difference points at, in a sentence."""
    same = " on equal code, versions and processor" if same_fingerprint else ""
    match difference:
        case FragmentDifference():
            others = "" if same_fingerprint else ", or what differs in code, versions or processor"
            return f"the environment is the suspect{others}: equal weights and seeds gave another fragment{same}"
        case UpdateDifference():
            who = "the learner is the suspect" if same_fingerprint else "what differs in code, versions or processor"
            verb = "" if same_fingerprint else " is the suspect"
            return f"{who}{verb}: equal fragments gave another update{same}"
