"""What passes between the conductor and an engine. Frames, weights and states are opaque handles to the conductor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from actors.env.lanes import LaneFacts
from actors.evaluate import EvaluationResult
from common.errors import ContractError, TruestepError
from common.fragment import FragmentSummary
from common.ledger import LedgerFragment
from deploy.conductor.accounts import Accounts
from learner.reports import AuditOrder, FragmentKey, Standing, UpdateReport

Handle = Any  # an object reference (Ray) or the bytes themselves (inline): moved, never looked into


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStarted:
    """The learner is ready and has published `version`, which contains `updates` updates."""

    version: int
    updates: int
    weights: Handle
    parameter_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted:
    """A rank's process is there, and its model made by the seed."""

    rank: int
    lease: str
    standing: Standing
    metrics_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAdopted:
    """A rank has replaced its state by the one it was given."""

    rank: int
    lease: str
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoined:
    """A rank is in the group of `formation`: all its ranks agreed, before any collective, on what they are."""

    formation: int
    rank: int
    lease: str
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFailed:
    """A rank could not meet the others within its deadline; it lives and can join again."""

    formation: int
    rank: int
    lease: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUpdated:
    """A rank has answered an order; `weights` is the publication, where it was MADE by the rank at place 0."""

    lease: str
    report: UpdateReport
    weights: Handle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLost:
    """A rank's process is gone (or was ended by the engine); nothing more will come from this lease."""

    rank: int
    lease: str
    cause: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStarted:
    """An actor stands at its first observation, or where its snapshot was taken."""

    actor: int
    incarnation: int
    lease: str
    facts: LaneFacts
    metrics_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHeld:
    """An actor has verified weights that were offered, and holds them ready."""

    actor: int
    lease: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMade:
    """A fragment exists; its summary says what is in it."""

    summary: FragmentSummary
    frame: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLost:
    """The process is gone (or was ended by the engine); nothing more will come from this lease.

    `breach`: that its environment broke its own declaration, if that is what it was lost for.
    """

    actor: int
    lease: str
    cause: str
    detail: str = ""
    breach: ContractError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSnapshot:
    """An actor's state for cut `update`; None where its environment cannot be restored."""

    actor: int
    lease: str
    update: int
    snapshot: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSnapshot:
    """A rank's state after `update` updates, as a handle that only the writer and other ranks open."""

    update: int
    state: Handle
    rank: int = 0
    lease: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMade:
    """Greedy episodes of the weights after `update` updates; `result` is None if the evaluation failed."""

    update: int
    final: bool
    result: EvaluationResult | None
    lease: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """Cut `update` is on disk, verified, under `name`; or `error` says why not."""

    update: int
    name: str
    digest: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Somebody wants the run to checkpoint and end (SIGTERM, Ctrl-C, a caller)."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The run cannot go on: bad input that only running could show, or the learner is lost."""

    error: TruestepError


Event = (
    LearnerStarted
    | RankStarted
    | StateAdopted
    | GroupJoined
    | JoinFailed
    | RankUpdated
    | RankLost
    | ActorStarted
    | WeightsHeld
    | FragmentMade
    | ActorLost
    | ActorSnapshot
    | LearnerSnapshot
    | EvaluationMade
    | CheckpointWritten
    | StopAsked
    | Fatal
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartActor:
    """Start a process for an actor, from a snapshot or fresh."""

    actor: int
    incarnation: int
    snapshot: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Make one fragment with `weights` of `version`. An actor's commands are carried out in order.

    Attributes:
        update: update that it is for; in asynchronous collection, where none is meant, the number of the collect.
        version: None = the newest weights that the actor holds when it begins.
        weights: of `version`; None where that is.
    """

    actor: int
    update: int
    term: int
    version: int | None
    weights: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferWeights:
    """Have an actor hold weights ready for its next fragment. A busy actor answers too, out of turn."""

    actor: int
    version: int
    weights: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class StopActor:
    """End an actor's process, which has nothing left to do; no event follows."""

    actor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRank:
    """Start a process for a rank. A rank's commands are carried out in order."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptState:
    """Replace a rank's state by `state`: what a `LearnerSnapshot` holds, or what the run began with."""

    rank: int
    state: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """Have `ranks` form a group, in this order of places; each waits `delay_s` before."""

    formation: int
    ranks: tuple[int, ...]
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Have `rank` publish the weights as they are; `LearnerStarted` follows.

    All other ranks note the version: fragments that were made by it will reach them too.
    """

    rank: int
    version: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank gets of an update.

    Attributes:
        rank: who.
        frames: of its own share, in the order of actors.
        audited_frames: of the audited rank's share, if it audits.
    """

    rank: int
    frames: tuple[Handle, ...]
    audited_frames: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Make update number `update` together, and publish it as `version`. One order to each rank of the group."""

    update: int
    attempt: int
    term: int
    version: int
    keys: tuple[FragmentKey, ...]
    shares: tuple[Share, ...]
    audit: AuditOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HurryRank:
    """The others have given up on what `rank` should have done with them: it has `within_s` left to answer."""

    rank: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRank:
    """End a rank's process; no event follows."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotActor:
    """Take an actor's state, after everything it was told before."""

    actor: int
    update: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLearner:
    """Take the state of `rank`, after everything it was told before, for the cut after `update` updates."""

    update: int
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Play greedy episodes on `actor`, in environments of their own."""

    actor: int
    update: int
    episodes: int
    final: bool
    weights: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatState:
    """One actor in a cut."""

    actor: int
    incarnation: int
    restarts: int
    quarantined: bool
    snapshot: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A fragment that waits for its update.

    Attributes:
        weights: updates contained in the weights that made it; -1 where that is not known any more.
    """

    summary: FragmentSummary
    frame: Handle
    weights: int = -1

    @property
    def key(self) -> tuple[int, int, int]:
        """Actor, incarnation and sequence: its name."""
        return self.summary.actor, self.summary.incarnation, self.summary.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A consistent cut through the run after `update` updates: everything a resume needs.

    Attributes:
        update: updates committed.
        term: the learner's term.
        version: last version published.
        env_steps: valid transitions of committed updates.
        parameter_digest: after `update` updates.
        chain: of the digests of all its updates; "" before the first, and in checkpoints of older releases.
        accounts: at the cut; in flight are exactly the transitions of `frames`.
        learner: handle of the learner's state.
        seats: the actors, each after the collects that `frames` holds.
        frames: fragments made for later updates, in the order in which they will be taken.
        evaluation: of these weights, if one was due.
        final_evaluation: of these weights, if the run ends here.
        final: the run ends here.
    """

    update: int
    term: int
    version: int
    env_steps: int
    parameter_digest: str
    accounts: Accounts
    learner: Handle
    seats: tuple[SeatState, ...]
    frames: tuple[Held, ...]
    evaluation: EvaluationResult | None
    final_evaluation: EvaluationResult | None
    final: bool
    chain: str = ""

    @property
    def score(self) -> float | None:
        """What `best` is chosen by: the larger evaluation of these weights."""
        result = self.final_evaluation or self.evaluation
        return None if result is None else result.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint:
    """Write a cut to disk, without stalling anything.

    Attributes:
        cut: all of it.
        ledger: what was decided since the last commit, and has to be on record before the cut is.
    """

    cut: Cut
    ledger: tuple[LedgerFragment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A fact for the run record and the log."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over.

    Attributes:
        status: finished, interrupted (checkpointed, resumable) or failed.
        verdict: one sentence for people.
        error: what failed, if anything did.
    """

    status: str
    verdict: str
    error: TruestepError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordUpdate:
    """An update is committed.

    Attributes:
        report: of the whole group: verdicts of all fragments in the order of actors, gaps summed, the largest lag,
            everything else from the rank at place 0 (if that was lost while closing the update, from the next).
        chain: of the digests of all updates up to this one.
        num_ranks: that made it.
        ledger: fragments whose fate was decided since the update before: those of this one in order, and what was
            dropped meanwhile.
    """

    report: UpdateReport
    chain: str
    num_ranks: int = 1
    ledger: tuple[LedgerFragment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentDropped:
    """A fragment was dropped as the flow has it: counted and in the ledger, no reason for alarm."""

    actor: int
    incarnation: int
    sequence: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Forget what was recorded after `update`: the run goes on from there under `term`."""

    update: int
    term: int
    reason: str


RankCommand = StartRank | AdoptState | JoinGroup | Publish | Update | SnapshotLearner | HurryRank | StopRank
ActorCommand = StartActor | StopActor | OfferWeights | Collect | SnapshotActor | Evaluate
Command = RankCommand | ActorCommand | WriteCheckpoint | RecordUpdate | FragmentDropped | RollBack | Note | Finish
