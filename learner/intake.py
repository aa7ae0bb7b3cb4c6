"""The border of the learner: a document becomes an accepted fragment, or a refusal with one reason from a closed set.

Nothing is dropped silently: every refusal is returned to the driver, which counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from common.errors import WireError
from common.fragment import Fragment, FragmentHeader, FragmentLayout, decode_fragment
from learner.reports import FragmentKey


class Refusal(StrEnum):
    """Why a fragment is not trained on."""

    CORRUPT = "corrupt"
    FOREIGN_RUN = "foreign_run"
    MISPLACED = "misplaced"
    OLD_TERM = "old_term"
    OLD_INCARNATION = "old_incarnation"
    DUPLICATE = "duplicate"
    UNKNOWN_VERSION = "unknown_version"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A fragment to train on.

    Attributes:
        fragment: views into the document.
        lag: updates between the weights that acted and the weights that will be trained.
        gap: fragments of this actor's incarnation that never arrived before this one.
    """

    fragment: Fragment
    lag: int
    gap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A fragment that is not trained on.

    Attributes:
        reason: why.
        detail: what was seen, for the log.
        gap: as of an accepted one; 0 where the fragment was refused before its order was looked at.
    """

    reason: Refusal
    detail: str
    gap: int = 0


class Intake:
    """Checks documents in the order given. Remembers per actor the incarnation and sequence last received.

    A fragment of another term leaves no trace: after a rollback its sequence numbers come again.
    """

    def __init__(self, run: str, layout: FragmentLayout, *, max_lag: int) -> None:
        self._run = run
        self._layout = layout
        self._max_lag = max_lag
        self._last: dict[int, tuple[int, int]] = {}
        self._update_of_version: dict[int, int] = {}

    def published(self, version: int, update: int) -> None:
        """Weights of `version` contain `update` updates; forget versions too old to be accepted."""
        self._update_of_version[version] = update
        oldest = update - self._max_lag
        self._update_of_version = {v: u for v, u in self._update_of_version.items() if u >= oldest}

    def accept(self, document: Any, *, term: int, update: int, key: FragmentKey | None = None) -> Accepted | Refused:
        """Decode and judge one document for update number `update` of `term`.

        Args:
            key: the fragment that the order has in this place: the ledger will say that it was this one. None = any.
        """
        try:
            fragment = decode_fragment(document, self._layout)
        except WireError as error:
            return Refused(reason=Refusal.CORRUPT, detail=str(error))
        header = fragment.header
        if header.run != self._run:
            return Refused(reason=Refusal.FOREIGN_RUN, detail=f"run {header.run!r}, this is {self._run!r}")
        if header.term != term:
            return Refused(reason=Refusal.OLD_TERM, detail=f"term {header.term}, now {term}")
        if key is not None and key != FragmentKey(
            actor=header.actor, incarnation=header.incarnation, sequence=header.sequence
        ):
            got = f"actor {header.actor}, incarnation {header.incarnation}, sequence {header.sequence}"
            ordered = f"actor {key.actor}, incarnation {key.incarnation}, sequence {key.sequence}"
            return Refused(reason=Refusal.MISPLACED, detail=f"{got} came in the place of {ordered}")
        incarnation, sequence = self._last.get(header.actor, (header.incarnation, -1))
        if header.incarnation < incarnation:
            detail = f"actor {header.actor}: incarnation {header.incarnation}, now {incarnation}"
            return Refused(reason=Refusal.OLD_INCARNATION, detail=detail)
        if header.incarnation > incarnation:
            sequence = -1
        if header.sequence <= sequence:
            detail = f"actor {header.actor}: sequence {header.sequence}, last {sequence}"
            return Refused(reason=Refusal.DUPLICATE, detail=detail)
        return self._judge_lag(fragment, update, gap=header.sequence - sequence - 1)

    def view(self, document: Any, *, update: int) -> Accepted | None:
        """A document of another rank's share as that rank sees it; None where it is not sound or its lag is not known.

        Nothing is remembered, and nothing else is judged: its own rank does that, and reports it.
        """
        try:
            fragment = decode_fragment(document, self._layout)
        except WireError:
            return None
        made_at = self._update_of_version.get(fragment.header.version)
        return None if made_at is None else Accepted(fragment=fragment, lag=update - made_at, gap=0)

    def note(self, key: FragmentKey) -> None:
        """A fragment of an update has reached this rank or another: nothing older of its actor is taken any more."""
        last = self._last.get(key.actor, (key.incarnation, -1))
        self._last[key.actor] = max(last, (key.incarnation, key.sequence))

    def _judge_lag(self, fragment: Fragment, update: int, *, gap: int) -> Accepted | Refused:
        header = fragment.header
        self._last[header.actor] = (header.incarnation, header.sequence)  # it arrived, whatever is made of it
        made_at = self._update_of_version.get(header.version)
        if made_at is None:
            return self._refuse_version(header, gap)
        lag = update - made_at
        if lag > self._max_lag:
            detail = f"actor {header.actor}: lag {lag}, allowed {self._max_lag}"
            return Refused(reason=Refusal.STALE, detail=detail, gap=gap)
        return Accepted(fragment=fragment, lag=lag, gap=gap)

    def _refuse_version(self, header: FragmentHeader, gap: int) -> Refused:
        """Versions only grow and `published` forgets the oldest: one below all that are known is stale."""
        oldest = min(self._update_of_version, default=0)
        if header.version < oldest:
            detail = f"actor {header.actor}: version {header.version}, oldest within {self._max_lag} updates {oldest}"
            return Refused(reason=Refusal.STALE, detail=detail, gap=gap)
        detail = f"actor {header.actor}: version {header.version}, known {sorted(self._update_of_version)}"
        return Refused(reason=Refusal.UNKNOWN_VERSION, detail=detail, gap=gap)

    def state(self) -> dict[str, Any]:
        """Plain values that must survive a crash."""
        return {
            "last": [[actor, *last] for actor, last in sorted(self._last.items())],
            "versions": [[version, update] for version, update in sorted(self._update_of_version.items())],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` took."""
        self._last = {actor: (incarnation, sequence) for actor, incarnation, sequence in state["last"]}
        self._update_of_version = dict(state["versions"])
