"""What lies between the first and the last of a window of snapshots: shares of its time. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from common.metrics import Stage
from deploy.attribution.snapshot import ActorFacts, HostFacts, RankFacts, Snapshot, since


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFigures:
    """Who waited for whom, in shares of the window.

    Attributes:
        starved: the learner had no update to make.
        blocked: actors had no fragment to make; a mean over actors.
        learning: the rank that works most was at work, by its own account.
        collecting: actors were at work, by theirs; a mean.
        environment: of that, they were in their environments.
        in_flight, capacity: fragments at the end, and how many these might have been; 0 in synchronous collection.
    """

    starved: float
    blocked: float
    learning: float
    collecting: float
    environment: float
    in_flight: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowActor:
    """The actor that takes longest for a fragment.

    Attributes:
        actor: which.
        fragment_s: that it takes.
        others_s: median of the others.
    """

    actor: int
    fragment_s: float
    others_s: float

    @property
    def times(self) -> float:
        """How many times as long as the others it takes."""
        return self.fragment_s / self.others_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """How ranks waited for one another, in shares of the time that they were at work.

    Attributes:
        most, least: of the rank that waited most, and of the one that waited least.
        awaited: which that is: the others waited for it.
        checks: of the rank that weighed and compared most.
    """

    most: float
    least: float
    awaited: int
    checks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFigures:
    """Whether threads got a core when they could have run.

    Attributes:
        queued: of the time in which actors, ranks and the driver could have run, they had none.
        delay: of the time in which actors and ranks were at work, they had none.
    """

    queued: float
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFigures:
    """What the driver's disk did, in shares of the window.

    Attributes:
        writing: a checkpoint was being written.
        queueing: of that, the next one was complete and waited.
        recording: the driver waited for the run registry, and all processes for the driver.
    """

    writing: float
    queueing: float
    recording: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """How full things are at the end of the window; None where that is not known.

    Attributes:
        host: the driver's container or machine.
        store: Ray's object store.
        faults_per_s: pages that actors and ranks had to read from disk.
    """

    host: float | None
    store: float | None
    faults_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A window of a run.

    Attributes:
        seconds: it lasts.
        asynchronous, in_turn: as in `Snapshot`.
        updates, fragments: committed and made in it.
        flow, cores, disk, memory: as they say.
        slow: the slowest actor; None where there are not two to compare.
        waits: of ranks; None where there are not two.
        gpu: utilisation of the learner's GPUs, a mean; None without.
    """

    seconds: float
    asynchronous: bool
    in_turn: bool
    updates: int
    fragments: int
    flow: FlowFigures
    cores: CoreFigures
    disk: DiskFigures
    memory: MemoryFigures
    slow: SlowActor | None = None
    waits: RankWaits | None = None
    gpu: float | None = None


def figures_of(snapshots: Sequence[Snapshot]) -> Figures:
    """Of two snapshots or more, oldest first. Who was not there at the first counts from nothing."""
    first, last = snapshots[0], snapshots[-1]
    seconds = last.at_s - first.at_s
    actors_before = {each.actor: each for each in first.actors}
    ranks_before = {each.rank: each for each in first.ranks}
    actors = [since(each, actors_before[each.actor]) if each.actor in actors_before else each for each in last.actors]
    ranks = [since(each, ranks_before[each.rank]) if each.rank in ranks_before else each for each in last.ranks]
    host = since(last.host, first.host)
    gpus = [rank.gpu for snapshot in snapshots for rank in snapshot.ranks if rank.gpu is not None]
    faults = sum(each.major_faults for each in actors) + sum(each.major_faults for each in ranks)
    return Figures(
        seconds=seconds,
        asynchronous=last.asynchronous,
        in_turn=last.in_turn,
        updates=last.stages[Stage.COMMITTED].mark - first.stages[Stage.COMMITTED].mark,
        fragments=last.stages[Stage.BUILT].mark - first.stages[Stage.BUILT].mark,
        flow=_flow(first, last, actors, ranks),
        cores=_cores(actors, ranks, host),
        disk=DiskFigures(
            writing=_share(host.writing_s, seconds),
            queueing=_share(host.queueing_s, seconds),
            recording=_share(host.record_s, seconds),
        ),
        memory=MemoryFigures(
            host=last.host.memory, store=last.host.store, faults_per_s=faults / seconds if seconds > 0 else 0.0
        ),
        slow=_slowest(actors),
        waits=_waits(ranks),
        gpu=fmean(gpus) if gpus else None,
    )


def _flow(first: Snapshot, last: Snapshot, actors: Sequence[ActorFacts], ranks: Sequence[RankFacts]) -> FlowFigures:
    """Where one process does everything, whoever is not at work waits."""
    seconds = last.at_s - first.at_s
    present_s = sum(each.present_s for each in actors)
    work_s = sum(each.work_s for each in actors)
    learning = _share(max((each.work_s for each in ranks), default=0.0), seconds)
    collecting = _share(work_s, seconds if last.in_turn else present_s)
    starved = _share(last.starved_s - first.starved_s, last.ready_s - first.ready_s)
    blocked = _share(sum(each.blocked_s for each in actors), present_s)
    return FlowFigures(
        starved=1.0 - learning if last.in_turn else starved,
        blocked=1.0 - collecting if last.in_turn else blocked,
        learning=learning,
        collecting=collecting,
        environment=_share(sum(each.env_s for each in actors), work_s),
        in_flight=last.in_flight,
        capacity=last.capacity,
    )


def _cores(actors: Sequence[ActorFacts], ranks: Sequence[RankFacts], host: HostFacts) -> CoreFigures:
    workers: list[ActorFacts | RankFacts] = [*actors, *ranks]
    delay_s = sum(each.delay_s for each in workers)
    ran_s = sum(each.cpu_s for each in workers) + host.cpu_s
    return CoreFigures(
        queued=_share(delay_s + host.delay_s, delay_s + host.delay_s + ran_s),
        delay=_share(delay_s, sum(each.work_s for each in workers)),
    )


def _slowest(actors: Sequence[ActorFacts]) -> SlowActor | None:
    """By the mean of its fragments, or by the one under way where that has taken longer already."""
    took = {each.actor: _fragment_s(each) for each in actors if each.fragments or each.at_work_s}
    if len(took) < 2:
        return None
    slow = max(took, key=lambda actor: took[actor])
    others_s = median(seconds for actor, seconds in took.items() if actor != slow)
    return SlowActor(actor=slow, fragment_s=took[slow], others_s=others_s) if others_s > 0 else None


def _fragment_s(actor: ActorFacts) -> float:
    mean_s = actor.work_s / actor.fragments if actor.fragments else 0.0
    return max(mean_s, actor.at_work_s)


def _waits(ranks: Sequence[RankFacts]) -> RankWaits | None:
    """Of those that answered anything."""
    waits = {each.rank: _share(each.wait_s, each.work_s) for each in ranks if each.orders}
    if len(waits) < 2:
        return None
    awaited = min(waits, key=lambda rank: waits[rank])
    checks = max(_share(each.verify_s, each.work_s) for each in ranks)
    return RankWaits(most=max(waits.values()), least=waits[awaited], awaited=awaited, checks=checks)


def _share(part: float, whole: float) -> float:
    """0 to 1; 0 of nothing."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
