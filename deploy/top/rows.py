"""Actors and learner ranks, a row each, worked out from their own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.metrics_reading import Reading
from deploy.top.scraping import Rates, Scrape, Window
from deploy.watched import LiveProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRow:
    """An actor. A figure is None where it is not known (yet); shares are of the wall clock, 0 to 1.

    Attributes:
        name: of the process.
        silent: why it did not answer; "" if it did.
        steps_per_s: its own.
        environment: share of the time spent in environments.
        policy: likewise in forward passes.
        waiting: likewise making no fragment.
        cpu: cores used.
        memory_bytes: resident.
        version: of the weights that acted in its latest fragment.
    """

    name: str
    silent: str
    steps_per_s: float | None
    environment: float | None
    policy: float | None
    waiting: float | None
    cpu: float | None
    memory_bytes: float | None
    version: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A learner rank; as `ActorRow`.

    Attributes:
        updates_per_s: its own.
        phases: share of the time in each phase of an update.
        waiting: share of the time in no update.
        reducing: share of the time waiting for other ranks in reduces, which is part of the phases.
        gpu: its GPU's utilisation; None without one.
        gpu_memory: used share of its GPU's memory.
        misplaced: it computes on another GPU than the one it was assigned.
    """

    name: str
    silent: str
    updates_per_s: float | None
    phases: Mapping[str, float]
    waiting: float | None
    reducing: float | None
    cpu: float | None
    memory_bytes: float | None
    gpu: float | None
    gpu_memory: float | None
    misplaced: bool


def actor_row(process: LiveProcess, scrape: Scrape, window: Window) -> ActorRow:
    """What is known of an actor."""
    seen, rates = scrape.seen.get(process.instance), _rates(process, window)
    collecting = rates.per_second("truestep_actor_collect_seconds_sum")
    return ActorRow(
        name=process.name,
        silent=scrape.silent.get(process.instance, ""),
        steps_per_s=rates.per_second("truestep_actor_env_steps_total"),
        environment=_share(rates.per_second("truestep_actor_environment_seconds_total")),
        policy=_share(rates.per_second("truestep_actor_policy_seconds_total")),
        waiting=None if collecting is None else max(0.0, 1.0 - collecting),
        cpu=rates.per_second("process_cpu_seconds_total"),
        memory_bytes=None if seen is None else seen.reading.value("process_resident_memory_bytes"),
        version=None if seen is None else seen.reading.value("truestep_actor_weights_version"),
    )


def rank_row(process: LiveProcess, scrape: Scrape, window: Window) -> RankRow:
    """What is known of a learner rank."""
    seen, rates = scrape.seen.get(process.instance), _rates(process, window)
    reading = Reading({}) if seen is None else seen.reading
    phases = _within_one(rates.by("truestep_learner_phase_seconds_sum", "phase"))
    used, total = (reading.value(f"truestep_process_gpu_memory_{what}_bytes") for what in ("used", "total"))
    return RankRow(
        name=process.name,
        silent=scrape.silent.get(process.instance, ""),
        updates_per_s=rates.per_second("truestep_learner_updates_total"),
        phases=phases,
        waiting=max(0.0, 1.0 - sum(phases.values())) if phases else None,
        reducing=_share(rates.per_second("truestep_learner_sync_seconds_sum", phase="reduce")),
        cpu=rates.per_second("process_cpu_seconds_total"),
        memory_bytes=reading.value("process_resident_memory_bytes"),
        gpu=reading.value("truestep_process_gpu_utilization_ratio"),
        gpu_memory=used / total if used is not None and total else None,
        misplaced=bool(reading.value("truestep_process_gpu_misplaced")),
    )


def _rates(process: LiveProcess, window: Window) -> Rates:
    return window.rates(lambda scrape: scrape.seen.get(process.instance))


def _within_one(shares: Mapping[str, float]) -> dict[str, float]:
    """An update that began before the window counts in it as a whole: what is above 1 in all is scaled down to it."""
    total = max(1.0, sum(shares.values()))
    return {name: share / total for name, share in shares.items()}


def _share(seconds_per_s: float | None) -> float | None:
    """A fragment that began before the window counts in it as a whole: a share above 1 is 1."""
    return None if seconds_per_s is None else min(1.0, seconds_per_s)
