"""What verified sync costs, and how its all-reduce compares with DistributedDataParallel: two Gloo ranks, one host.

    python -m benchmarks.sync [--sizes 100k,1M,25M] [--rounds N]

Four roads take turns in the same two processes, 2,048 rows a rank, one intra-op thread each:

    verified     the product: a step with all its verification, a backup at the start of an update, a verdict at its end
    unverified   the same step without any of it
    reduce       forward, backward and our bucketed all-reduce; no optimiser
    ddp          forward, backward and DistributedDataParallel's; no optimiser

The cost that is judged is CPU time of the rank's thread spent on verification, as a share of all its CPU time: on two
cores with two ranks wall time is too noisy to show 3 %. The paired wall times are printed beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.report import Spread, paired_ratios, read_result, result_line, table
from benchmarks.sync_rank import Order

MAX_SHARE = 0.03
MIN_OF_DDP = 0.97
LIMIT_S = 1800.0
SIZES = {  # name: width and number of hidden layers, gradient steps of an update, rounds
    "100k": (285, 2, 16, 15),
    "1M": (692, 3, 8, 9),
    "25M": (2880, 4, 8, 2),
}


def run_pair(order: Order) -> dict[str, Any]:
    """Both ranks to their end; what place 0 measured."""
    command = [sys.executable, "-m", "benchmarks.sync_rank"]
    told = json.dumps(asdict(order))
    first = subprocess.Popen([*command, "0", "-", told], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    address = first.stdout.readline().strip()
    second = subprocess.Popen([*command, "1", address, told], stdout=subprocess.DEVNULL)
    try:
        output, _ = first.communicate(timeout=LIMIT_S)
        second.wait(timeout=LIMIT_S)
    finally:
        for process in (first, second):
            if process.poll() is None:
                process.kill()
    return read_result(output)


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """Ratios round by round, and whether the promises hold."""
    seconds = result["seconds_per_step"]
    of_ddp = paired_ratios(seconds["ddp"], seconds["reduce"])
    slower = paired_ratios(seconds["verified"], seconds["unverified"])
    return {
        "parameters": result["parameters"],
        "verify_share": result["verify_share"],
        "verify_ms_per_step": result["verify_ms_per_step"],
        "step_ms": Spread.of(seconds["verified"]).median * 1e3,
        "verified_over_unverified": slower.median,
        "speed_of_ddp": of_ddp.median,
        "equal_bits_with_ddp": result["equal_bits_with_ddp"],
        "promises": {"cheap": result["verify_share"] <= MAX_SHARE, "as_fast": of_ddp.median >= MIN_OF_DDP},
        "words": {"slower": slower.words(3), "of_ddp": of_ddp.words(3)},
    }


def row(name: str, judged: dict[str, Any]) -> list[str]:
    """One line of the table."""
    return [
        name,
        f"{judged['parameters']:,}",
        f"{judged['step_ms']:.1f}",
        f"{judged['verify_ms_per_step']:.2f}",
        f"{judged['verify_share']:.2%}",
        judged["words"]["slower"],
        judged["words"]["of_ddp"],
        "yes" if judged["equal_bits_with_ddp"] else "no",
    ]


def main() -> None:
    """Entry point; exit code 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--rounds", type=int, default=0)
    arguments = parser.parse_args()
    judged: dict[str, dict[str, Any]] = {}
    for name in arguments.sizes.split(","):
        width, layers, steps, rounds = SIZES[name]
        order = Order(width=width, layers=layers, rows=2048, steps=steps, rounds=arguments.rounds or rounds)
        judged[name] = judge(run_pair(order))
        print(f"{name}: {judged[name]}", file=sys.stderr, flush=True)
    header = [
        "size",
        "parameters",
        "step ms",
        "verify ms",
        "share of CPU",
        "verified / unverified",
        "reduce vs DDP",
        "bits",
    ]
    print(table(header, [row(name, each) for name, each in judged.items()]))
    print(result_line(judged))
    sys.exit(0 if all(all(each["promises"].values()) for each in judged.values()) else 1)


if __name__ == "__main__":
    main()
