"""Verified sync on one GPU: what verification costs beside the step, and how fast digests run.

    python -m benchmarks.gpu_sync [--sizes 100k,1M,25M]

NCCL with a group of one: sums cost next to nothing, so the share of verification is not hidden behind them. Times are
of the GPU's own events for digests, and of the host's clock, synchronised, for whole updates.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from benchmarks.report import result_line, table
from benchmarks.sync import SIZES
from benchmarks.sync_rank import Order, Unverified, Verified
from common.clock import NS_PER_S, MonotonicClock
from learner.parallel.digests import chunk_bounds, weighted_digests
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.reports import Formation

MAX_SHARE = 0.02
DEADLINE_S = 60.0
REPEATS = 20


def group_of_one() -> ProcessGroup:
    """Over NCCL."""
    formation = Formation(number=1, ranks=(0,))
    blackboard = Blackboard(formation, 0, Meeting("127.0.0.1", deadline_s=DEADLINE_S), deadline_s=DEADLINE_S)
    return ProcessGroup(blackboard, formation, 0, torch.device("cuda"), deadline_s=DEADLINE_S)


def digest_rate(num_elements: int) -> float:
    """Bytes of a vector digested per second, by the GPU's own clock."""
    vector = torch.randn(num_elements, device="cuda")
    bounds = chunk_bounds(0, num_elements)
    weighted_digests(vector, bounds)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        weighted_digests(vector, bounds)
    end.record()
    end.synchronize()
    return REPEATS * 4 * num_elements / (begin.elapsed_time(end) / 1e3)


def seconds_per_step(road: Verified | Unverified) -> float:
    """Of one update, synchronised at both ends."""
    clock = MonotonicClock()
    torch.cuda.synchronize()
    start_ns = clock.now_ns()
    road.update()
    torch.cuda.synchronize()
    return (clock.now_ns() - start_ns) / NS_PER_S / road.order.steps


def measure(name: str) -> dict[str, Any]:
    """One size: verified and unverified in turn."""
    width, layers, steps, _ = SIZES[name]
    order = Order(width=width, layers=layers, rows=2048, steps=steps, rounds=1, ranks=1)
    gpu = torch.device("cuda")
    verified, plain = Verified(order, 0, group_of_one(), gpu), Unverified(order, 0, group_of_one(), gpu)
    for road in (verified, plain):
        road.update()
    pairs = [(seconds_per_step(verified), seconds_per_step(plain)) for _ in range(REPEATS)]
    verified_s, plain_s = (sorted(column)[len(column) // 2] for column in zip(*pairs, strict=True))
    elements = verified.parameters.num_elements
    return {
        "parameters": elements,
        "step_ms": plain_s * 1e3,
        "verified_ms": verified_s * 1e3,
        "share": (verified_s - plain_s) / verified_s,
        "digest_gb_per_s": digest_rate(elements) / 1e9,
    }


def main() -> None:
    """Entry point; exit code 1 if verification takes more than its share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_sync: torch sees no GPU here")
    measured = {name: measure(name) for name in arguments.sizes.split(",")}
    rows = [
        [
            name,
            f"{each['parameters']:,}",
            f"{each['step_ms']:.2f}",
            f"{each['verified_ms']:.2f}",
            f"{each['share']:.1%}",
            f"{each['digest_gb_per_s']:,.0f}",
        ]
        for name, each in measured.items()
    ]
    print(table(["size", "parameters", "step ms", "verified ms", "share", "digest GB/s"], rows))
    print(result_line(measured))
    sys.exit(0 if all(each["share"] <= MAX_SHARE for each in measured.values()) else 1)


if __name__ == "__main__":
    main()
