"""What the conductor is to do: the part of the configuration that decides."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The run as the conductor sees it.

    Attributes:
        num_actors: actors at the start.
        policy_lag: 0 collects and learns in turn; 1 collects for update k+1 while update k runs.
        total_steps: the run ends after the first update that reaches this many environment steps.
        evaluate_every: updates between evaluations; 0 evaluates only at the end.
        episodes: of each evaluation.
        final_episodes: of the evaluation that ends the run.
        checkpoint_every: updates between checkpoints; 0 takes them only with evaluations and at the end.
        stop_at_return: end early once an evaluation's mean reaches this; each evaluation is then waited for, so the
            update at which the run ends does not depend on timing.
        max_restarts: restarts of one actor before it is given up.
        max_skipped_updates: consecutive updates without a committed step before the run is given up.
    """

    num_actors: int
    policy_lag: int
    total_steps: int
    evaluate_every: int = 0
    episodes: int = 20
    final_episodes: int = 100
    checkpoint_every: int = 0
    stop_at_return: float | None = None
    max_restarts: int = 3
    max_skipped_updates: int = 3

    def __post_init__(self) -> None:
        if self.policy_lag not in (0, 1):
            raise ConfigError("policy_lag", got=self.policy_lag, allowed="0 or 1")
        for name in ("num_actors", "total_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), allowed="1 or more")
        for name in ("checkpoint_every", "max_restarts", "max_skipped_updates"):
            if getattr(self, name) < 0:
                raise ConfigError(name, got=getattr(self, name), allowed="0 or more")

    def evaluates(self, update: int) -> bool:
        """Whether the weights after `update` updates are evaluated."""
        return update > 0 and self.evaluate_every > 0 and update % self.evaluate_every == 0

    def cuts(self, update: int) -> bool:
        """Whether a checkpoint is taken after `update` updates."""
        due = self.checkpoint_every > 0 and update % self.checkpoint_every == 0
        return update > 0 and (due or self.evaluates(update))
