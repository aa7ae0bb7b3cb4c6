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
