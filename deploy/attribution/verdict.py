"""From figures to a verdict, with the reason in words that say what to do. Pure functions.

Questions are asked in order, causes before what they cause: a full memory or too few cores slow down everything, a slow
disk makes no actor slow, a slow actor makes the learner starve, and so on. The first that is answered is the verdict.
Every limit is a share that has to hold over the whole window; docs/attribution.md has the reasons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from common.metrics import Stall
from deploy.attribution.figures import Figures, figures_of
from deploy.attribution.snapshot import Snapshot

EASE = 0.8  # a verdict in force stays while its figures are within a fifth of its limits

FULL = 0.95  # of memory or object store: the kernel kills at 1, Ray spills or blocks
FAULTS_PER_S = 100.0  # at 0.1 ms each on a fast disk 1 % of a thread, at 10 ms on a slow one all of it
QUEUED = 0.4  # two runnable threads share a core at 0.5; a busy machine that copes is below 0.2
DELAY = 0.2  # of the work: what more cores would gain; below that it is the noise of a machine in use
QUEUEING = 0.3  # cuts come faster than they are written for a third of the time
RECORDING = 0.3  # nothing is told or answered meanwhile
SLOW_TIMES = 2.0  # environments differ by less from one another, a sick host by more
SLOW_WAITS = 0.2  # others, or the learner, must feel it
SYNC_LAG = 0.3  # of the ranks' work: what the group would gain if nobody were slower than the others
SYNC_COST = 0.5  # of the ranks' work: more than the computing itself
LEARNS = 0.2  # of the window: where the learner hardly works, its sync holds nobody up
GPU_IDLE = 0.3  # utilisation that counts kernels, however small: below it, the host is what the GPU waits for
BUSY = 0.7
BOTH_WAIT = 0.25  # learner and actors at once, which with room between them cannot be
BOUND = 0.5  # one side waits for half of the time ...
MORE_THAN = 2.0  # ... and at least twice as long as the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What holds a run up, and how that is known.

    Attributes:
        verdict: what.
        words: one sentence: the figures that led to it, and what would help.
        figures: all of them.
    """

    verdict: Stall
    words: str
    figures: Figures

    @property
    def brief(self) -> str:
        """For a line that is shown live; "" if nothing holds it up."""
        return "" if self.verdict is Stall.HEALTHY else self.words.partition(";")[0]

    def to_plain(self) -> dict[str, Any]:
        """Figures as JSON values, shares to three digits."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self.figures))
        return plain


Question = Callable[[Figures, float], str]  # how far limits are eased, to the words or ""


def judge(snapshots: Sequence[Snapshot], *, before: Stall = Stall.HEALTHY) -> Finding:
    """The verdict on a window of two snapshots or more; `before` is in force and stays more easily than it came."""
    figures = figures_of(snapshots)
    for verdict, question in QUESTIONS:
        if words := question(figures, EASE if verdict is before else 1.0):
            return Finding(verdict=verdict, words=words, figures=figures)
    flow = figures.flow
    words = f"healthy: the learner waited {_percent(flow.starved)} of the time, actors {_percent(flow.blocked)}"
    return Finding(verdict=Stall.HEALTHY, words=words, figures=figures)


def _memory(figures: Figures, ease: float) -> str:
    memory = figures.memory
    if memory.host is not None and memory.host >= 1 - (1 - FULL) / ease:
        return (
            f"memory-bound: {_percent(memory.host)} of the memory are used; fewer actors.num or actors.lanes, "
            "a smaller flow.most_bytes, or a host with more"
        )
    if memory.store is not None and memory.store >= 1 - (1 - FULL) / ease:
        return (
            f"memory-bound: {_percent(memory.store)} of the object store are used; a smaller flow.most_bytes, "
            "or a larger object store of the cluster"
        )
    if memory.faults_per_s >= FAULTS_PER_S * ease:
        return (
            f"memory-bound: {memory.faults_per_s:.0f} pages a second are read back from disk; fewer processes on this "
            "host, or more memory"
        )
    return ""


def _cores(figures: Figures, ease: float) -> str:
    cores = figures.cores
    if cores.queued < QUEUED * ease or cores.delay < DELAY * ease:
        return ""
    return (
        f"CPU oversubscribed: threads queued for a core {_percent(cores.queued)} of the time in which they could run; "
        "end what else runs on these hosts, or use fewer actors.num, learner.ranks or learner.threads"
    )


def _disk(figures: Figures, ease: float) -> str:
    disk = figures.disk
    if disk.recording >= RECORDING * ease:
        return (
            f"I/O-blocked: the driver waited for the run registry {_percent(disk.recording)} of the time; "
            "put --out on a faster disk"
        )
    if disk.queueing >= QUEUEING * ease:
        return (
            f"I/O-blocked: a checkpoint waited for the one before {_percent(disk.queueing)} of the time; a larger "
            "checkpoint.every, or a faster disk for --out"
        )
    return ""


def _slow_actor(figures: Figures, ease: float) -> str:
    slow, flow = figures.slow, figures.flow
    if slow is None or figures.in_turn or slow.times < SLOW_TIMES * ease:
        return ""
    felt = flow.starved if figures.asynchronous else min(flow.starved, flow.blocked)
    if felt < SLOW_WAITS * ease:
        return ""
    return (
        f"slow actor: actor {slow.actor} takes {_seconds(slow.fragment_s)} for a fragment, the others "
        f"{_seconds(slow.others_s)}, and the learner waits {_percent(flow.starved)}; look at its host, or at what it "
        f"does: truestep profile RUN --process actor-{slow.actor}"
    )


def _sync(figures: Figures, ease: float) -> str:
    waits, flow = figures.waits, figures.flow
    if waits is None or flow.learning < LEARNS * ease:
        return ""
    if waits.most - waits.least >= SYNC_LAG * ease:
        return (
            f"sync-bound: ranks wait {_percent(waits.most)} of their work for rank {waits.awaited}; look at its host, "
            f"or at what it does: truestep profile RUN --process learner-{waits.awaited}"
        )
    if waits.least + waits.checks >= SYNC_COST * ease:
        return (
            f"sync-bound: every rank spends {_percent(waits.least + waits.checks)} of its work on reducing and "
            "verifying; fewer learner.ranks, larger minibatches, or a faster network between the ranks"
        )
    return ""


def _gpu(figures: Figures, ease: float) -> str:
    gpu, flow = figures.gpu, figures.flow
    if gpu is None or gpu > GPU_IDLE / ease or flow.learning < BUSY * ease:
        return ""
    return (
        f"GPU idle: {_percent(gpu)} utilised while the learner was at work {_percent(flow.learning)}; larger "
        "minibatches, fewer of them, or learner.device = cpu"
    )


def _capacity(figures: Figures, ease: float) -> str:
    """Asynchronous collection only: in turn, one side waits whenever the other works."""
    flow = figures.flow
    if not figures.asynchronous or figures.in_turn or min(flow.starved, flow.blocked) < BOTH_WAIT * ease:
        return ""
    return (
        f"flow-bound: the learner waited {_percent(flow.starved)} of the time and actors {_percent(flow.blocked)}, "
        f"with {flow.capacity} fragments in flight at most; a larger flow.most_in_flight, flow.max_lag or "
        "flow.most_bytes"
    )


def _learner(figures: Figures, ease: float) -> str:
    flow = figures.flow
    if flow.blocked < BOUND * ease or flow.blocked < MORE_THAN * ease * flow.starved:
        return ""
    return (
        f"learner-bound: the learner had work {_percent(1 - flow.starved)} of the time, actors had none "
        f"{_percent(flow.blocked)}; a GPU or more learner.ranks, fewer epochs, larger minibatches; else fewer actors do"
    )


def _actors(figures: Figures, ease: float) -> str:
    flow = figures.flow
    if flow.starved < BOUND * ease or flow.starved < MORE_THAN * ease * flow.blocked:
        return ""
    return (
        f"actor-bound: the learner had nothing to do {_percent(flow.starved)} of the time, actors worked "
        f"{_percent(1 - flow.blocked)}, {_percent(flow.environment)} of that in their environments; more actors.num or "
        "actors.lanes, or faster environments"
    )


QUESTIONS: tuple[tuple[Stall, Question], ...] = (
    (Stall.MEMORY_BOUND, _memory),
    (Stall.CPU_OVERSUBSCRIBED, _cores),
    (Stall.IO_BLOCKED, _disk),
    (Stall.SLOW_ACTOR, _slow_actor),
    (Stall.SYNC_BOUND, _sync),
    (Stall.GPU_IDLE, _gpu),
    (Stall.FLOW_BOUND, _capacity),
    (Stall.LEARNER_BOUND, _learner),
    (Stall.ACTOR_BOUND, _actors),
)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _plain(value: Any) -> Any:
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: _plain(item) for key, item in value.items() if item is not None}
        case _:
            return value
