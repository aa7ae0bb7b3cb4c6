"""Environment steps per second of PPO on CartPole-v1 against its peers, and what metrics cost.

    python -m benchmarks.throughput [--rounds 7] [--seconds 4] [--settings 256x32 16x128] [--skip-sb3]

Every contender gets the same work (benchmarks/peers/setting.py) and a fresh process for each reading. Rounds are
interleaved and ratios are taken within a round, so that a drift of the machine falls on both sides; a table shows
medians. The plain peer counts as an opponent only if it is itself well ahead of Stable-Baselines3.

Every process, ours and the plain peer's, computes with one intra-op thread; that is what the promises are about. What
the plain peer makes of two threads is measured and printed beside it. Stable-Baselines3 gets whichever is faster.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import contenders
from benchmarks.contenders import Contender, NotInstalled, take_reading
from benchmarks.peers.setting import Setting
from benchmarks.rates import Rate
from benchmarks.report import Spread, paired_ratios, result_line, table

METRICS_SHARE_LIMIT = 0.01
WARMUP_S = 2.0
PLAIN, PLAIN_OURS, PLAIN_TWO, SB3 = "plain", "plain, our allocator", "plain, 2 threads", "sb3"
OURS, OURS_LAG_0, OURS_NO_METRICS = "truestep", "truestep, lag 0", "truestep, no metrics"
Readings = Mapping[str, Sequence[Rate]]


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


# ---- taking readings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All readings at one setting.

    Attributes:
        readings: by contender, one a round.
        threads: intra-op threads that each contender ran with.
        skipped: why a peer is missing, by its name.
    """

    readings: Readings
    threads: Mapping[str, int]
    skipped: Mapping[str, str]


def measure(target: Target, peers: Sequence[Contender], *, rounds: int, seconds: float) -> Measured:
    """Interleaved rounds at one setting; each round begins with another contender."""
    ours = [contenders.truestep(), contenders.truestep(policy_lag=0), contenders.truestep(metrics=False)]
    field, skipped = list(ours), dict[str, str]()
    for peer in peers:
        try:
            tried = faster_threads(peer, target.setting, seconds=seconds) if peer.name == SB3 else peer
            field.append(tried)
        except NotInstalled as error:
            skipped[peer.name] = str(error)
            _say(f"{peer.name} skipped: {error}")
    readings: dict[str, list[Rate]] = {contender.name: [] for contender in field}
    for index in range(rounds):
        shift = index % len(field)
        for contender in field[shift:] + field[:shift]:
            rate = take_reading(contender, target.setting, seconds=seconds, warmup_s=WARMUP_S)
            readings[contender.name].append(rate)
            _say(f"{target.setting.name} round {index + 1}/{rounds}  {contender.name:<22} {rate.steps_per_s:>10,.0f}/s")
    threads = {contender.name: contender.threads for contender in field}
    return Measured(readings=readings, threads=threads, skipped=skipped)


def faster_threads(peer: Contender, setting: Setting, *, seconds: float) -> Contender:
    """The peer with 1 or 2 intra-op threads, whichever gave more; readings of this trial count for nothing else."""
    counts = (1, 2) if (os.cpu_count() or 1) > 1 else (1,)
    trials = {
        count: take_reading(peer.with_threads(count), setting, seconds=seconds, warmup_s=WARMUP_S).steps_per_s
        for count in counts
    }
    _say(f"{setting.name} {peer.name}: " + ", ".join(f"{n} threads {rate:,.0f}/s" for n, rate in trials.items()))
    return peer.with_threads(max(trials, key=lambda count: trials[count]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- judging them --------------------------------------------------------------------------------------------------


def judge(target: Target, measured: Measured) -> dict[str, Any]:
    """Plain values: medians, ratios, and for each promise true, false, or None where it could not be judged."""
    rates = {name: [rate.steps_per_s for rate in each] for name, each in measured.readings.items()}
    ratios = {
        name: paired_ratios(rates[OURS], rates[name]) for name in (PLAIN, PLAIN_OURS, PLAIN_TWO, SB3) if name in rates
    }
    qualification = paired_ratios(rates[PLAIN], rates[SB3]).median if SB3 in rates else None
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
        "steps_per_s": {name: _plain(Spread.of(each)) for name, each in rates.items()},
        "ratios": {name: _plain(ratio, digits=3) for name, ratio in ratios.items()},
        "plain_over_sb3": None if qualification is None else round(qualification, 3),
        "plain_over_sb3_needed": target.qualification,
        "plain_qualified": qualified,
        "metrics_share": None if share is None else round(share, 5),
        "metrics_off_over_on": round(paired_ratios(rates[OURS_NO_METRICS], rates[OURS]).median, 3),
        "threads": dict(measured.threads),
        "skipped": dict(measured.skipped),
        "promises": promises,
    }


def metrics_share(readings: Sequence[Rate]) -> float | None:
    """CPU time inside the metrics over that of all processes of the run, all rounds together; None if not read."""
    facts = [rate.facts for rate in readings if rate.facts]
    process_s = sum(fact["process_cpu_s"] for fact in facts)
    return sum(fact["metrics_cpu_s"] for fact in facts) / process_s if process_s > 0.0 else None


def _plain(spread: Spread, digits: int = 0) -> dict[str, float]:
    figures = {"median": spread.median, "low": spread.low, "high": spread.high}
    return {name: round(value, digits) for name, value in figures.items()}


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
    lines += [f"{_mark(kept)}  {promise}" for promise, kept in judged["promises"].items()]
    return "\n".join(lines)


def _mark(kept: bool | None) -> str:
    return "not judged" if kept is None else "kept      " if kept else "NOT KEPT  "


# ---- the command ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO throughput against peers.")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 1")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one reading")
    parser.add_argument("--settings", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--skip-sb3", action="store_true", help="then the plain peer cannot qualify as an opponent")
    parser.add_argument("--sb3-python", default=sys.executable, help="interpreter that has stable-baselines3")
    asked = parser.parse_args()
    if asked.rounds < 1 or not asked.seconds > 0.0:
        parser.error(f"got --rounds {asked.rounds} --seconds {asked.seconds}; allowed: 1 or more, above 0")
    two = replace(contenders.plain(), name=PLAIN_TWO, threads=2)
    peers = [contenders.plain(), contenders.plain(allocator=True), two]
    if not asked.skip_sb3:
        peers.append(contenders.sb3(asked.sb3_python))
    judged = []
    for name in asked.settings:
        target = TARGETS[name]
        judged.append(judge(target, measure(target, peers, rounds=asked.rounds, seconds=asked.seconds)))
        print(words(judged[-1]), flush=True)
    met = all(kept is True for each in judged for kept in each["promises"].values())
    print(result_line({"benchmark": "throughput", "rounds": asked.rounds, "settings": judged, "met": met}))


if __name__ == "__main__":
    main()
