"""Where a rollback goes to, and the chain of digests that says which updates a run is made of."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from actors.evaluate import EvaluationResult
from deploy.conductor.messages import Cut, Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class SafePoint:
    """A state of the learner that all ranks agreed on and that the driver holds, whatever happens to them.

    Attributes:
        update: updates in it.
        env_steps: valid transitions of those updates.
        state: what a rank adopts.
        parameter_digest: of its parameters.
        chain: of its updates.
        evaluation: of its weights, if one was made.
    """

    update: int
    env_steps: int
    state: Handle
    parameter_digest: str
    chain: str
    evaluation: EvaluationResult | None

    @staticmethod
    def of(cut: Cut) -> SafePoint:
        """The learner's side of a cut."""
        return SafePoint(
            update=cut.update,
            env_steps=cut.env_steps,
            state=cut.learner,
            parameter_digest=cut.parameter_digest,
            chain=cut.chain,
            evaluation=cut.evaluation,
        )


def extend_chain(chain: str, *, update: int, parameter_digest: str, state_digest: str) -> str:
    """The chain with one more update: SHA-256, hexadecimal, of all before it and what it came to; "" is the start."""
    return sha256(f"{chain}|{update}|{parameter_digest}|{state_digest}".encode()).hexdigest()


class Rollbacks:
    """How often the run was rolled back, and what each would undo.

    Args:
        at_most: rollbacks in a row without an update beyond where the first of them began.

    Attributes:
        total: in this driving.
        furthest: updates committed when a rollback came, at most.
    """

    def __init__(self, at_most: int) -> None:
        self.total = 0
        self.furthest = 0
        self._at_most = at_most
        self._in_a_row = 0
        self._trained: dict[int, int] = {}

    def commit(self, update: int, *, trained: int) -> None:
        """`update` is committed, `trained` transitions of it were trained on."""
        self._trained[update] = trained
        if update + 1 > self.furthest:
            self._in_a_row = 0

    def begin(self, committed: int) -> bool:
        """One more, after `committed` updates. Returns False if it is one too many."""
        self._in_a_row += 1
        self.furthest = max(self.furthest, committed)
        self.total += self._in_a_row <= self._at_most
        return self._in_a_row <= self._at_most

    def undo(self, update: int) -> int:
        """Everything from `update` on is undone; returns the transitions that had been trained on."""
        undone = [each for each in self._trained if each >= update]
        return sum(self._trained.pop(each) for each in undone)

    def keep(self, update: int) -> None:
        """What lies before `update` will never be undone."""
        self._trained = {each: trained for each, trained in self._trained.items() if each >= update}
