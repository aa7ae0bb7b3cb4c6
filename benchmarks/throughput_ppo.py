"""What is promised of PPO's throughput on CartPole-v1: how it is measured, and whether it was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import contenders
from benchmarks.contenders import Contender, NotInstalled
from benchmarks.peers.setting import Setting
from benchmarks.rates import Rate
from benchmarks.report import Spread, mark, table
from benchmarks.rounds import WARMUP_S, Measured, fastest, interleaved, thread_variants

METRICS_SHARE_LIMIT = 0.01
PLAIN, PLAIN_OURS, PLAIN_TWO, SB3 = "plain", "plain, our allocator", "plain, 2 threads", "sb3"
OURS, OURS_LAG_0, OURS_NO_METRICS = "truestep", "truestep, lag 0", "truestep, no metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is promised at one setting.

    Attributes:
        setting: the work.
        over: least ratio of truestep (lag 1) over a peer, by the peer's name.
        qualification: least ratio of the plain peer over SB3 for it to count as an opponent.
    """

    setting: Setting
    over: Mapping[str, float]
    qualification: float


TARGETS = {
    target.setting.name: target
    for target in (
        Target(setting=Setting(lanes=256, rows=32, minibatch=2048), over={PLAIN: 1.3, SB3: 3.5}, qualification=2.2),
        Target(setting=Setting(lanes=16, rows=128, minibatch=256), over={PLAIN: 1.3}, qualification=1.5),
    )
}


def measure(target: Target, sb3: Contender | None, *, rounds: int, seconds: float) -> Measured:
    """Ours and all peers; Stable-Baselines3, where it is wanted, with the threads that serve it best."""
    ours = [contenders.truestep(), contenders.truestep(policy_lag=0), contenders.truestep(metrics=False)]
    two = replace(contenders.plain(), name=PLAIN_TWO, threads=2)
    field = [*ours, contenders.plain(), contenders.plain(allocator=True), two]
    if sb3 is not None:
        with suppress(NotInstalled):  # then the first round says so
            sb3 = fastest(thread_variants(sb3), target.setting, seconds=seconds, warmup_s=WARMUP_S)
        field.append(sb3)
    return interleaved(field, target.setting, rounds=rounds, seconds=seconds, warmup_s=WARMUP_S)


def judge(target: Target, measured: Measured) -> dict[str, Any]:
    """Plain values: medians, ratios, and for each promise true, false, or None where it could not be judged."""
    against = {name: measured.ratio(OURS, name) for name in (PLAIN, PLAIN_OURS, PLAIN_TWO, SB3)}
    ratios = {name: ratio for name, ratio in against.items() if ratio is not None}
    opponent, metrics = measured.ratio(PLAIN, SB3), measured.ratio(OURS_NO_METRICS, OURS)
    qualification = None if opponent is None else opponent.median
    qualified = None if qualification is None else qualification >= target.qualification
    promises: dict[str, bool | None] = {}
    for name, least in target.over.items():
        reached = ratios[name].median >= least if name in ratios else None
        promises[f"{least:g} times {name}"] = qualified and reached if name == PLAIN and reached else reached
    share = metrics_share(measured.readings[OURS])
    promises[f"metrics below {METRICS_SHARE_LIMIT:.0%}"] = None if share is None else share < METRICS_SHARE_LIMIT
    return {
        "setting": target.setting.name,
        "minibatch": target.setting.minibatch,
        "steps_per_s": {name: Spread.of(each).to_plain() for name, each in measured.rates.items()},
        "ratios": {name: ratio.to_plain(digits=3) for name, ratio in ratios.items()},
        "plain_over_sb3": None if qualification is None else round(qualification, 3),
        "plain_over_sb3_needed": target.qualification,
        "plain_qualified": qualified,
        "metrics_share": None if share is None else round(share, 5),
        "metrics_off_over_on": None if metrics is None else round(metrics.median, 3),
        "threads": dict(measured.threads),
        "skipped": dict(measured.skipped),
        "promises": promises,
    }


def metrics_share(readings: Sequence[Rate]) -> float | None:
    """CPU time inside the metrics over that of all processes of the run, all rounds together; None if not read."""
    facts = [rate.facts for rate in readings if rate.facts]
    process_s = sum(fact["process_cpu_s"] for fact in facts)
    return sum(fact["metrics_cpu_s"] for fact in facts) / process_s if process_s > 0.0 else None


def words(judged: Mapping[str, Any]) -> str:
    """A table and its verdicts."""
    rows = []
    for name, rate in judged["steps_per_s"].items():
        ratio = judged["ratios"].get(name)
        against = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        spread = f"{rate['median']:,.0f} ({rate['low']:,.0f} to {rate['high']:,.0f})"
        rows.append([name, str(judged["threads"][name]), spread, against])
    lines = [f"\nCartPole-v1 PPO, {judged['setting']}, minibatch {judged['minibatch']:,}, 4 epochs"]
    lines.append(table(["contender", "threads", "steps/s, median (range)", "truestep / it"], rows))
    if judged["plain_over_sb3"] is not None:
        verdict = "counts as an opponent" if judged["plain_qualified"] else "does NOT count as an opponent"
        needed = judged["plain_over_sb3_needed"]
        lines.append(f"plain / sb3 {judged['plain_over_sb3']:.2f}, needed {needed:g}: the plain peer {verdict}")
    if judged["metrics_share"] is not None:
        off = judged["metrics_off_over_on"]
        lines.append(f"metrics: {judged['metrics_share']:.2%} of the run's CPU time; rate without / with {off:.3f}")
    lines += [f"{mark(kept)}  {promise}" for promise, kept in judged["promises"].items()]
    return "\n".join(lines)
