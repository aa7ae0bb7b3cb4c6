"""What the conductor is to do: the part of the configuration that decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How fragments flow where every actor makes them at its own pace.

    Attributes:
        fragments: of an update.
        max_lag: a fragment whose weights are more updates behind is dropped.
        first_capacity: fragments that may be in flight at first, and at least.
        most_capacity: that may ever be.
        least_actors, most_actors: bounds of the pool; it begins with `Plan.num_actors`.
    """

    fragments: int
    max_lag: int
    first_capacity: int
    most_capacity: int
    least_actors: int
    most_actors: int

    def __post_init__(self) -> None:
        for name in ("fragments", "max_lag", "first_capacity", "most_capacity", "least_actors", "most_actors"):
            if getattr(self, name) < 1:
                raise ConfigError(f"flow.{name}", got=getattr(self, name), allowed="1 or more")
        if self.most_capacity < self.fragments:
            raise ConfigError(
                "an update takes more fragments than may be in flight",
                got=self.fragments,
                allowed=f"at most {self.most_capacity}",
            )


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
        flow: how fragments flow in asynchronous collection; None = an update takes one fragment of every actor.
        max_restarts: restarts of one actor within `restart_window` updates before it is given up.
        restart_window: in updates.
        max_skipped_updates: consecutive updates without a committed step before the run is given up.
        num_ranks: learner ranks.
        max_rank_restarts: restarts of one rank within `rank_restart_window` commits before the run is given up.
        rank_restart_window: in commits of the group.
        max_sync_failures: consecutive failures to sync, though every rank lives, before training is rolled back (or, if
            the ranks cannot even meet, the run is given up).
        max_rollbacks: rollbacks without an update beyond where the first of them began, before the run is given up.
        audit_every: updates between recomputations of one rank's gradient by others; 0 = never.
        collective_s: a rank that waits for another notices after so long that it does not come.
        straggler_s: a rank has so long to answer once another has given up on it; `collective_s` more if another is
            gone, for it may still wait for that one.
        slow_rank_s: a rank for which the others wait longer in one update is noted.
    """

    num_actors: int
    policy_lag: int
    total_steps: int
    evaluate_every: int = 0
    episodes: int = 20
    final_episodes: int = 100
    checkpoint_every: int = 0
    stop_at_return: float | None = None
    flow: Flow | None = None
    max_restarts: int = 3
    restart_window: int = 1000
    max_skipped_updates: int = 3
    num_ranks: int = 1
    max_rank_restarts: int = 3
    rank_restart_window: int = 1000
    max_sync_failures: int = 3
    max_rollbacks: int = 3
    audit_every: int = 0
    collective_s: float = 30.0
    straggler_s: float = 10.0
    slow_rank_s: float = 1.0

    def __post_init__(self) -> None:
        if self.policy_lag not in (0, 1):
            raise ConfigError("policy_lag", got=self.policy_lag, allowed="0 or 1")
        for name in (
            "num_actors",
            "total_steps",
            "num_ranks",
            "restart_window",
            "rank_restart_window",
            "max_sync_failures",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), allowed="1 or more")
        counts = ("checkpoint_every", "max_restarts", "max_skipped_updates", "max_rank_restarts", "max_rollbacks")
        for name in (*counts, "audit_every"):
            if getattr(self, name) < 0:
                raise ConfigError(name, got=getattr(self, name), allowed="0 or more")
        for name in ("collective_s", "straggler_s", "slow_rank_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(name, got=getattr(self, name), allowed="above 0, finite")

    @property
    def num_seats(self) -> int:
        """Actors that there may ever be."""
        return self.num_actors if self.flow is None else max(self.num_actors, self.flow.most_actors)

    def evaluates(self, update: int) -> bool:
        """Whether the weights after `update` updates are evaluated."""
        return update > 0 and self.evaluate_every > 0 and update % self.evaluate_every == 0

    def cuts(self, update: int) -> bool:
        """Whether a checkpoint is taken after `update` updates."""
        due = self.checkpoint_every > 0 and update % self.checkpoint_every == 0
        return update > 0 and (due or self.evaluates(update))
