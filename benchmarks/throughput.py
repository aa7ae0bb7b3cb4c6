"""Environment steps per second against peers, on the same machine in the same run.

    python -m benchmarks.throughput [ppo] [impala] [pong] [--rounds 7] [--seconds 4] [--rllib-python PYTHON]

    ppo      PPO on CartPole-v1 against a plain single process and Stable-Baselines3, and what metrics cost
    impala   IMPALA on CartPole-v1 against RLlib's, at equal actors and lanes
    pong     IMPALA on ALE/Pong-v5 against RLlib's and a plain single process

Every contender gets the same work (benchmarks/peers/setting.py, impala_setting.py) and a fresh process for each
reading. Rounds are interleaved and ratios are taken within a round, so that a drift of the machine falls on both
sides; a table shows medians.

Every process, ours and the peers', computes with one intra-op thread unless the table says otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import contenders, throughput_impala, throughput_ppo
from benchmarks.report import result_line

PPO = "ppo"
WORKS = (PPO, *throughput_impala.TARGETS)


def run_ppo(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Judged settings, one by one, as they are done."""
    sb3 = None if asked.skip_sb3 else contenders.sb3(asked.sb3_python)
    for name in asked.settings:
        target = throughput_ppo.TARGETS[name]
        measured = throughput_ppo.measure(target, sb3, rounds=asked.rounds, seconds=asked.seconds)
        judged = throughput_ppo.judge(target, measured)
        print(throughput_ppo.words(judged), flush=True)
        yield judged


def run_impala(work: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The one setting of `work`, judged."""
    target = throughput_impala.TARGETS[work]
    measured = throughput_impala.measure(
        target, asked.rllib_python, trials=asked.rllib_trials, rounds=asked.rounds, seconds=asked.seconds
    )
    judged = throughput_impala.judge(target, measured)
    print(throughput_impala.words(judged), flush=True)
    yield judged


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Throughput against peers.")
    made.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)} (default {PPO})")
    made.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 1")
    made.add_argument("--seconds", type=float, default=4.0, help="length of one reading")
    made.add_argument("--settings", nargs="+", choices=tuple(throughput_ppo.TARGETS), default=[*throughput_ppo.TARGETS])
    made.add_argument("--skip-sb3", action="store_true", help="then the plain peer cannot qualify as an opponent")
    made.add_argument("--sb3-python", default=sys.executable, help="interpreter that has stable-baselines3")
    made.add_argument("--rllib-python", default=sys.executable, help="interpreter that has ray[rllib]")
    made.add_argument("--rllib-trials", action="store_true", help="find RLlib's fastest way before the rounds")
    return made


def main() -> None:
    command = parser()
    asked = command.parse_args()
    works = asked.works or [PPO]
    if unknown := sorted(set(works) - set(WORKS)):
        command.error(f"WORK: got {', '.join(unknown)}, allowed: {', '.join(WORKS)}")
    if asked.rounds < 1 or not asked.seconds > 0.0:
        command.error(f"got --rounds {asked.rounds} --seconds {asked.seconds}; allowed: 1 or more, above 0")
    judged = [each for work in works for each in (run_ppo(asked) if work == PPO else run_impala(work, asked))]
    met = all(kept is True for each in judged for kept in each["promises"].values())
    print(result_line({"benchmark": "throughput", "rounds": asked.rounds, "settings": judged, "met": met}))


if __name__ == "__main__":
    main()
