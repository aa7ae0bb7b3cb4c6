"""What is promised of IMPALA's throughput over RLlib's, on CartPole-v1 and Pong: how it is measured, and whether it was
kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import contenders
from benchmarks.contenders import Contender, NotInstalled
from benchmarks.peers.impala_setting import CARTPOLE, PONG, ImpalaSetting
from benchmarks.rates import Rate
from benchmarks.report import Spread, mark, table
from benchmarks.rounds import Measured, fastest, interleaved
from benchmarks.truestep_impala import DROPPED, IDLE_SHARE, LAG_MAX, LAG_MEDIAN

OURS, RLLIB = "truestep", "rllib"
WARMUP_S = 3.0  # from the end of the first update: in-flight fragments settle within it


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is promised at one setting.

    Attributes:
        setting: the work.
        least: ratio of truestep over RLlib.
        rllib_trials: ways in which RLlib may hold environments and its learner, of which the fastest takes part.
        rllib_module: RLlib takes part a second time, without a promise, with a network that was written for it here.
        others: whoever is measured beside them, without a promise.
    """

    setting: ImpalaSetting
    least: float
    rllib_trials: tuple[tuple[str, int], ...]
    rllib_module: bool = False
    others: tuple[Contender, ...] = ()


TARGETS = {
    "impala": Target(
        setting=ImpalaSetting(env=CARTPOLE, actors=2, lanes=256, rows=32),
        least=7.0,
        rllib_trials=(("vector_entry_point", 0), ("sync", 0), ("vector_entry_point", 1)),
    ),
    "pong": Target(
        setting=ImpalaSetting(env=PONG, actors=2, lanes=32, rows=16),
        least=2.3,
        rllib_trials=(("vector_entry_point", 0), ("vector_entry_point", 1)),
        rllib_module=True,
        others=(
            contenders.truestep_impala(bfloat16=True),
            contenders.plain_pong(),
            replace(contenders.plain_pong(bfloat16=True), name="plain, bfloat16, 2 threads", threads=2),
        ),
    ),
}


def measure(target: Target, rllib_python: str, *, trials: bool, rounds: int, seconds: float) -> Measured:
    """Interleaved rounds of truestep, RLlib and the others.

    Args:
        rllib_python: interpreter that has RLlib.
        trials: find RLlib's fastest way first; else the first of `target.rllib_trials` is taken.
    """
    variants = [
        contenders.rllib(rllib_python, vectorise=how, learners=learners) for how, learners in target.rllib_trials
    ]
    rllib = variants[0]
    if trials:
        with suppress(NotInstalled):  # then the first round says so
            rllib = fastest(variants, target.setting, seconds=seconds, warmup_s=WARMUP_S)
    beside = [contenders.rllib(rllib_python, our_module=True)] if target.rllib_module else []
    field = [contenders.truestep_impala(), rllib, *beside, *target.others]
    return interleaved(field, target.setting, rounds=rounds, seconds=seconds, warmup_s=WARMUP_S)


def judge(target: Target, measured: Measured) -> dict[str, Any]:
    """Plain values: medians, ratios, the learner's idle share and lag, and whether the promise was kept."""
    names = [name for name in measured.rates if name != OURS]
    ratios = {name: ratio for name in names if (ratio := measured.ratio(OURS, name)) is not None}
    reached = ratios[RLLIB].median >= target.least if RLLIB in ratios else None
    return {
        "setting": target.setting.name,
        "steps_per_s": {name: Spread.of(each).to_plain() for name, each in measured.rates.items()},
        "ratios": {name: ratio.to_plain(digits=3) for name, ratio in ratios.items()},
        "flow": flow(measured.readings[OURS]),
        "threads": dict(measured.threads),
        "skipped": dict(measured.skipped),
        "promises": {f"{target.least:g} times {RLLIB}": reached},
    }


def flow(readings: Sequence[Rate]) -> dict[str, float]:
    """Of truestep's rounds: median idle share of the learner, median and largest lag, share of steps dropped."""
    facts = [rate.facts for rate in readings]
    trained = sum(rate.steps for rate in readings)
    dropped = sum(fact[DROPPED] for fact in facts)
    return {
        IDLE_SHARE: round(Spread.of([fact[IDLE_SHARE] for fact in facts]).median, 3),
        LAG_MEDIAN: Spread.of([fact[LAG_MEDIAN] for fact in facts]).median,
        LAG_MAX: max(fact[LAG_MAX] for fact in facts),
        "dropped_share": round(dropped / (trained + dropped), 4),
    }


def words(judged: Mapping[str, Any]) -> str:
    """A table and its verdicts."""
    rows = []
    for name, rate in judged["steps_per_s"].items():
        ratio = judged["ratios"].get(name)
        against = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        spread = f"{rate['median']:,.0f} ({rate['low']:,.0f} to {rate['high']:,.0f})"
        rows.append([name, str(judged["threads"][name]), spread, against])
    facts = judged["flow"]
    lines = [f"\nIMPALA, {judged['setting']} (actors x lanes x rows), one fragment an update, one pass"]
    lines.append(table(["contender", "threads", "steps/s, median (range)", "truestep / it"], rows))
    lines.append(
        f"truestep: learner idle {facts[IDLE_SHARE]:.0%}, policy lag {facts[LAG_MEDIAN]:g} (median) to "
        f"{facts[LAG_MAX]:g} updates (largest), {facts['dropped_share']:.2%} of steps dropped as too old"
    )
    lines += [f"{name} skipped: {reason}" for name, reason in judged["skipped"].items()]
    lines += [f"{mark(kept)}  {promise}" for promise, kept in judged["promises"].items()]
    return "\n".join(lines)
