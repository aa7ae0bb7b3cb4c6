"""What goes into a rank and what comes out of it: orders, reports and the verdicts of sync. Plain records, no tensors.

Everything here crosses a process border and is read by the conductor, which decides; a rank decides nothing alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from common.stint import Stint


class OrderStatus(StrEnum):
    """What became of an order on one rank."""

    MADE = "made"  # every rank agreed on every step: the rank stands at the next update
    DISPUTED = "disputed"  # the ranks found, together, that something is wrong: the update's start is restored
    FAILED = "failed"  # a collective failed or ran past its deadline: the update's start is restored
    OUT_OF_STEP = "out_of_step"  # the order is not for the update at which this rank stands: nothing was done


class Fault(StrEnum):
    """What a dispute is about."""

    DIGEST = "digest"  # ranks hold different reduced gradients
    CONSERVATION = "conservation"  # the reduced gradient is not the sum of what the ranks put in
    PARAMETERS = "parameters"  # ranks hold different parameters, moments or counters after the update
    LOCAL_GRADIENT = "local_gradient"  # a recomputed local gradient differs


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentKey:
    """Names one fragment of an update: who made it, in which life, and its number there."""

    actor: int
    incarnation: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOrder:
    """One step of this update is computed again: by the rank that made it, and by another from the same fragments.

    Attributes:
        audited: rank whose local gradient is recomputed.
        auditors: ranks that recompute it besides, in order; empty in a group of one.
    """

    audited: int
    auditors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOrder:
    """What the conductor asks of one rank.

    Attributes:
        update: number of the update, from 0: the only index of schedules and seeds.
        attempt: number of this order in the run; orders of one attempt go to every rank of the group.
        term: fragments of another term are refused.
        publish_as: version under which the result is published.
        keys: all fragments of the update in the order of actors, whichever rank decodes them.
        audit: what is recomputed, if anything.
    """

    update: int
    term: int
    publish_as: int
    attempt: int = 0
    keys: tuple[FragmentKey, ...] = ()
    audit: AuditOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentVerdict:
    """What became of one fragment of an order.

    Attributes:
        refusal: "" if accepted, else the reason.
        detail: what was seen, for the log.
        num_valid: valid transitions accepted; 0 if refused.
    """

    refusal: str
    detail: str
    num_valid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """Where the ranks of a group disagree; the same record on every rank.

    Attributes:
        fault: what about.
        step: gradient step of the update, from 0; -1 for the state after the update.
        bucket: of the reduced gradient; -1 where there is none.
        chunks: offending chunks, numbered over the whole flat vector.
        parameters: names of the parameters that lie in them.
        digests: by rank, the digest (hexadecimal) of its offending chunks.
    """

    fault: Fault
    step: int
    bucket: int
    chunks: tuple[int, ...]
    parameters: tuple[str, ...]
    digests: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Who was wrong, known once a disputed update has been made again; the same record on every rank.

    Attributes:
        dispute: of the first attempt.
        ranks: whose first digest differs from what all agree on now, or who contradicted itself or the majority in an
            audit; empty = unattributed.
        sha256: by chunk, of the value that all agree on now.
    """

    dispute: Dispute
    ranks: tuple[int, ...]
    sha256: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What the sync of one order came to on one rank.

    Attributes:
        verified_steps: gradient steps whose verdict is in, and good.
        disputes: what was found; empty unless the status is DISPUTED.
        attribution: of an earlier attempt at the same update, if this one was made.
        audited: whether a step was recomputed.
        failure: what a collective failed of, in words; "" unless the status is FAILED.
        reduced_bytes: bytes that this rank put into reduces.
        gradient_norm: mean norm of this rank's own gradients, before the reduce.
        seconds: where the time went, by phase: reduce (waiting for the others), verify, exchange, backup, audit.
    """

    verified_steps: int = 0
    disputes: tuple[Dispute, ...] = ()
    attribution: Attribution | None = None
    audited: bool = False
    failure: str = ""
    reduced_bytes: int = 0
    gradient_norm: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one order did on one rank.

    Attributes:
        rank: who reports.
        status: what became of the order. Only MADE changed anything.
        attempt, update, term, version: as ordered.
        updates: where the rank stands now: updates its state contains.
        state_digest: of parameters, moments and counters there; equal on ranks that agree.
        trained: whether at least one gradient step was committed. If not, parameters are as before.
        verdicts: one per document of this rank's share, in the order given.
        steps: gradient steps committed.
        skipped_steps: gradient steps skipped for a non-finite gradient.
        skipped_at: first parameter whose gradient was non-finite.
        lag: largest lag of the accepted fragments of this rank's share, in updates.
        gaps: fragments of known incarnations that never arrived before those of this order.
        parameter_digest: SHA-256 of the parameters after the update.
        learning_rate: of this update.
        statistics: losses and diagnostics over the rows of all ranks, means over gradient steps.
        layer_norms: of the reduced gradient of the first step, by `LayerGroup`; alike on all ranks.
        seconds: where the time went, by phase.
        sync: what verification came to.
        stop_asked: name of the signal by which somebody asked this process to end; "" if nobody did.
        gpu_utilization: of the GPU that the rank computes on, lately, 0 to 1; None without one.
        stint: what the order cost this rank's thread, its wait for the order included.
    """

    rank: int = 0
    status: OrderStatus = OrderStatus.MADE
    attempt: int = 0
    update: int
    term: int
    version: int
    updates: int = 0
    state_digest: str = ""
    trained: bool
    verdicts: tuple[FragmentVerdict, ...]
    steps: int
    skipped_steps: int
    skipped_at: str
    lag: int
    gaps: int
    parameter_digest: str
    learning_rate: float
    statistics: dict[str, float] = field(default_factory=dict)
    layer_norms: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sync: SyncReport = field(default_factory=SyncReport)
    stop_asked: str = ""
    gpu_utilization: float | None = field(default=None, compare=False)
    stint: Stint = field(default_factory=Stint, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """One forming of the group: who is in it, and where they meet.

    Attributes:
        number: of the forming, from 1; names its keys at the meeting place, so that late comers of an earlier one
            meet nobody.
        ranks: who is in it; a rank's index there is its place.
        address: host:port of the meeting place; "" for a group of one.
        delay_s: wait so long before joining.
    """

    number: int
    ranks: tuple[int, ...]
    address: str = ""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands between two orders.

    Attributes:
        rank: who.
        updates: that its state contains.
        state_digest: of parameters, moments and counters.
        parameter_digest: SHA-256 of the parameters.
    """

    rank: int
    updates: int
    state_digest: str
    parameter_digest: str


def share_of(num_fragments: int, place: int, num_ranks: int) -> range:
    """The fragments of an update, by index in the order of actors, that the rank at `place` decodes.

    Contiguous and as even as possible, so the rows of all ranks in the order of places are the rows of one rank.
    """
    return range(place * num_fragments // num_ranks, (place + 1) * num_fragments // num_ranks)
