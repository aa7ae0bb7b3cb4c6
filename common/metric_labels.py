"""Label values: closed sets, and what becomes of a name that is in none of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from enum import StrEnum
from typing import TypeVar

LabelT = TypeVar("LabelT", bound=StrEnum)
logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """Where the time of an update goes."""

    INTAKE = "intake"
    LEARN = "learn"
    CLOSE = "close"  # all ranks agree on the state after the update, or undo it
    PUBLISH = "publish"


class Statistic(StrEnum):
    """What an algorithm says of an update, means over its gradient steps unless said otherwise."""

    POLICY = "policy"
    VALUE = "value"
    ENTROPY = "entropy"
    APPROXIMATE_KL = "approximate_kl"
    CLIP_FRACTION = "clip_fraction"
    GRADIENT_NORM = "gradient_norm"
    CLIPPED_STEPS = "clipped_steps"  # number of steps
    STOPPED_EARLY = "stopped_early"  # 1 if the KL limit ended the update
    EXPLAINED_VARIANCE = "explained_variance"  # of the whole batch
    NORMALISER_ROWS = "normaliser_rows"  # in the statistics, where something is normalised
    NORMALISER_REFUSED = "normaliser_refused"  # fragments of this update that are not in them
    RETURN_DEVIATION = "return_deviation"  # by which rewards are divided


class LayerGroup(StrEnum):
    """Where in a network a parameter is."""

    TORSO = "torso"  # features and hidden layers that policy and value share
    CORE = "core"  # recurrent
    POLICY = "policy"  # head and whatever belongs to it alone
    VALUE = "value"
    OTHER = "other"  # of a network of the user's own, under names that ours do not have


class DropReason(StrEnum):
    """Why a produced transition, or its fragment, was not trained on."""

    CORRUPT = "corrupt"
    FOREIGN_RUN = "foreign_run"
    MISPLACED = "misplaced"
    OLD_TERM = "old_term"
    OLD_LEASE = "old_lease"
    OLD_INCARNATION = "old_incarnation"
    DUPLICATE = "duplicate"
    UNKNOWN_VERSION = "unknown_version"
    STALE = "stale"
    SKIPPED = "skipped"
    ROLLED_BACK = "rolled_back"
    NOT_TAKEN = "not_taken"  # the run that is made again dropped it as well
    OTHER = "other"  # a reason that this list lacks; logged, so that totals still add up


class ActorState(StrEnum):
    """Where an actor is in its life."""

    CREATED = "created"  # its first process is on its way
    RUNNING = "running"  # it has fragments to make
    BLOCKED = "blocked"  # it is there, and has none to make: it waits for weights, or for room in the flow
    DEAD = "dead"  # its process was lost: the next one is on its way, or the actor was given up


class RankState(StrEnum):
    """Where a learner rank is in its life."""

    STARTING = "starting"
    READY = "ready"
    JOINED = "joined"
    QUARANTINED = "quarantined"


class SyncPhase(StrEnum):
    """Where the time of verified sync goes."""

    REDUCE = "reduce"  # waiting for the others
    VERIFY = "verify"
    EXCHANGE = "exchange"
    BACKUP = "backup"
    AUDIT = "audit"


class SyncFault(StrEnum):
    """What ranks disagreed about."""

    DIGEST = "digest"
    CONSERVATION = "conservation"
    PARAMETERS = "parameters"
    LOCAL_GRADIENT = "local_gradient"


class RecoveryCause(StrEnum):
    """What kept the group of ranks from its next commit."""

    RANK_LOST = "rank_lost"
    SYNC_FAILED = "sync_failed"
    MISMATCH = "mismatch"
    ROLLBACK = "rollback"


class SaveResult(StrEnum):
    """How writing a checkpoint ended."""

    OK = "ok"
    FAILED = "failed"


_REASONS = {reason.value: reason for reason in DropReason}


class Stall(StrEnum):
    """What holds a run up, as `deploy.attribution` judges it."""

    HEALTHY = "healthy"  # nothing that something could be done about
    IO_BLOCKED = "io_blocked"  # checkpoints are written more slowly than they are taken
    CPU_OVERSUBSCRIBED = "cpu_oversubscribed"  # threads could run and get no core
    SLOW_ACTOR = "slow_actor"  # one actor is far behind the others, and the update needs its fragments
    ACTOR_BOUND = "actor_bound"  # the learner waits for actors, and all of them are busy
    LEARNER_BOUND = "learner_bound"  # actors wait for the learner, and it is busy
    FLOW_BOUND = "flow_bound"  # both wait: too few fragments may be in flight
    SYNC_BOUND = "sync_bound"  # learner ranks wait for one another
    MEMORY_BOUND = "memory_bound"  # memory or object store are full
    GPU_IDLE = "gpu_idle"  # the learner is busy, its GPU is not


class Stage(StrEnum):
    """The ring that a transition, and then the weights it leads to, runs through; each stage by what it counts."""

    TICKS = "ticks"  # environments stepped, all lanes of an actor at once
    BUILT = "built"  # fragments built by actors
    ACCEPTED = "accepted"  # fragments that the driver took in hand
    DRAWN = "drawn"  # fragments told to the learner
    COMMITTED = "committed"  # updates
    PUBLISHED = "published"  # versions of weights
    ADOPTED = "adopted"  # versions that an actor made a fragment with for the first time


class ClosedLabels:
    """Keeps label values within their closed sets: one log record per set, however many names there are."""

    def __init__(self) -> None:
        self._logged: set[type[StrEnum]] = set()

    def known_only(self, known: type[LabelT], given: Mapping[str, float]) -> dict[LabelT, float]:
        """`given` without the names that `known` lacks."""
        members = {member.value: member for member in known}
        self._log(known, given.keys() - members.keys(), "not exported")
        return {members[name]: value for name, value in given.items() if name in members}

    def as_other(self, given: Mapping[str, int]) -> dict[DropReason, int]:
        """`given` with unknown reasons summed up as OTHER, so that the total stays what it is."""
        reasons = {name: _REASONS.get(name, DropReason.OTHER) for name in given}
        self._log(DropReason, given.keys() - _REASONS.keys(), "counted as 'other'")
        counts: dict[DropReason, int] = {}
        for name, reason in reasons.items():
            counts[reason] = counts.get(reason, 0) + given[name]
        return counts

    def _log(self, known: type[StrEnum], names: Set[str], what: str) -> None:
        if names and known not in self._logged:
            self._logged.add(known)
            logger.warning("metrics: %s lacks %s: %s; told once", known.__name__, sorted(names), what)
