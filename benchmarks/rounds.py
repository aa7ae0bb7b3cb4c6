"""Readings of several contenders in interleaved rounds, so that a drift of the machine falls on all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import Contender, NotInstalled, Work, take_reading
from benchmarks.rates import Rate
from benchmarks.report import Spread, paired_ratios

WARMUP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All readings at one setting.

    Attributes:
        readings: by contender, one a round.
        threads: intra-op threads that each contender ran with.
        skipped: why a peer is missing, by its name.
    """

    readings: Mapping[str, Sequence[Rate]]
    threads: Mapping[str, int]
    skipped: Mapping[str, str]

    @property
    def rates(self) -> dict[str, list[float]]:
        """Steps a second, by contender, one a round."""
        return {name: [rate.steps_per_s for rate in each] for name, each in self.readings.items()}

    def ratio(self, ours: str, theirs: str) -> Spread | None:
        """ours / theirs, round by round; None where either is missing."""
        rates = self.rates
        return paired_ratios(rates[ours], rates[theirs]) if ours in rates and theirs in rates else None


def interleaved(field: Sequence[Contender], work: Work, *, rounds: int, seconds: float, warmup_s: float) -> Measured:
    """Everybody once a round, each round beginning with another; who is not installed is left out and named."""
    present, skipped = list(field), dict[str, str]()
    readings: dict[str, list[Rate]] = {contender.name: [] for contender in field}
    for index in range(rounds):
        shift = index % len(present)
        for contender in present[shift:] + present[:shift]:
            try:
                rate = take_reading(contender, work, seconds=seconds, warmup_s=warmup_s)
            except NotInstalled as error:
                skipped[contender.name] = str(error)
                say(f"{contender.name} skipped: {error}")
                continue
            readings[contender.name].append(rate)
            say(f"{work.name} round {index + 1}/{rounds}  {contender.name:<22} {rate.steps_per_s:>10,.0f}/s")
        present = [contender for contender in present if contender.name not in skipped]
    threads = {contender.name: contender.threads for contender in present}
    return Measured(readings={name: readings[name] for name in threads}, threads=threads, skipped=skipped)


def fastest(variants: Sequence[Contender], work: Work, *, seconds: float, warmup_s: float) -> Contender:
    """The variant that gave most in one reading each; those readings count for nothing else. Raises NotInstalled."""
    trials = [take_reading(each, work, seconds=seconds, warmup_s=warmup_s).steps_per_s for each in variants]
    for each, rate in zip(variants, trials, strict=True):
        say(f"{work.name} trial  {each.name} {each.threads} threads {' '.join(each.flags)}  {rate:,.0f}/s")
    return variants[max(range(len(trials)), key=trials.__getitem__)]


def thread_variants(peer: Contender) -> list[Contender]:
    """The peer with 1 and, where there are several cores, 2 intra-op threads."""
    counts = (1, 2) if (os.cpu_count() or 1) > 1 else (1,)
    return [peer.with_threads(count) for count in counts]


def say(text: str) -> None:
    """Progress, beside the results."""
    print(text, file=sys.stderr, flush=True)
