"""How far a run has come, and the weights that may act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deploy.conductor.messages import Cut, Handle
from deploy.conductor.safe import SafePoint, extend_chain
from learner.reports import UpdateReport

Publication = tuple[int, Handle]  # version, weights


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        term: of the learner, between two rollbacks.
        committed: updates that every rank agreed on.
        issued: updates told to the group of ranks.
        env_steps: valid transitions of committed updates.
        version: last published.
        parameter_digest: of the parameters after `committed` updates.
        chain: of the digests of all committed updates.
    """

    term: int = 0
    committed: int = 0
    issued: int = 0
    env_steps: int = 0
    version: int = 0
    parameter_digest: str = ""
    chain: str = ""

    @staticmethod
    def at(cut: Cut | None) -> Progress:
        """Where a resume begins; None = a new run."""
        if cut is None:
            return Progress()
        return Progress(
            term=cut.term,
            committed=cut.update,
            issued=cut.update,
            env_steps=cut.env_steps,
            parameter_digest=cut.parameter_digest,
            chain=cut.chain,
        )

    def commit(self, report: UpdateReport, *, steps: int) -> None:
        """One more update, of `steps` environment steps."""
        self.committed = report.update + 1
        self.env_steps += steps
        self.version, self.parameter_digest = report.version, report.parameter_digest
        self.chain = extend_chain(
            self.chain,
            update=report.update,
            parameter_digest=report.parameter_digest,
            state_digest=report.state_digest,
        )

    def return_to(self, safe: SafePoint) -> None:
        """A rollback: a new term goes on from there."""
        self.term += 1
        self.committed = self.issued = safe.update
        self.env_steps, self.parameter_digest, self.chain = safe.env_steps, safe.parameter_digest, safe.chain


class Publications:
    """Weights that may still act, by the updates they contain; and what every version that may still arrive contains.

    Args:
        keeps: whether weights after so many updates may still be wanted, once so many are committed.
    """

    def __init__(self, keeps: Callable[[int, int], bool]) -> None:
        self._keeps = keeps
        self._published: dict[int, Publication] = {}
        self._contained: dict[int, int] = {}
        self._oldest_of_term = 0

    def __bool__(self) -> bool:
        return bool(self._published)

    def __contains__(self, update: int) -> bool:
        return update in self._published

    def get(self, update: int) -> Publication | None:
        """The weights after `update` updates, if they are there."""
        return self._published.get(update)

    @property
    def newest(self) -> Publication | None:
        """The weights that contain most."""
        return self._published[max(self._published)] if self._published else None

    def of_this_term(self, version: int) -> bool:
        """Whether weights of `version` may act: none that a rollback has undone may."""
        return version >= self._oldest_of_term

    def contained(self, version: int) -> int:
        """Updates that the weights of `version` contain; -1 where that is not known."""
        return self._contained.get(version, -1)

    def advance(self, update: int, published: Publication | None) -> None:
        """`update` updates are committed; their weights, unless they were lost with their rank."""
        if published is not None:
            self._add(update, published)
        self._published = {each: p for each, p in self._published.items() if self._keeps(each, update)}

    def publish(self, update: int, published: Publication, *, earlier: range) -> None:
        """The weights after `update` updates, published apart. Where earlier ones of this term were lost with a rank,
        these act instead: they will never come."""
        self._add(update, published)
        for each in earlier:
            self._published.setdefault(each, published)

    def _add(self, update: int, published: Publication) -> None:
        version = published[0]
        if not self._published:
            self._oldest_of_term = version
        self._published[update] = published
        self._contained[version] = update

    def forget_before(self, version: int) -> None:
        """No fragment that older weights made can arrive any more, unless they may still act."""
        oldest = min((version, *(published[0] for published in self._published.values())))
        for each in [each for each in self._contained if each < oldest]:
            del self._contained[each]

    def clear(self) -> None:
        """A rollback: none of them may act. Fragments that they made may still arrive."""
        self._published.clear()
