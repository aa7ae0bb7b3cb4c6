"""What the ledger costs: its share of the CPU time of a whole run, and its size.

    python -m benchmarks.ledger [--updates 300]

IMPALA on CartPole-v1 with engine inline, so that actors, learner and driver are one process and its CPU time is that of
the run. What keeps the ledger is timed by the CPU time of its thread: gathering fates as updates are committed and
fragments dropped, and writing rows into the registry. The commit of SQLite is not: the updates' rows pay for that with
or without a ledger.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.report import mark, result_line, table
from common import runs_ledger
from common.clock import NS_PER_S, process_cpu_ns, thread_cpu_ns
from deploy.conductor.fates import Fates
from deploy.config import parse_config
from deploy.outputs import open_registry
from deploy.session import train

MOST_SHARE = 0.01
FATES = ("drop", "take", "commit")  # where the conductor decides
SHAPES = ((2, 256, 32), (2, 32, 20), (4, 8, 16))  # actors, lanes, rows; the last is smaller than anybody should use


@dataclass(slots=True)
class Timer:
    """CPU time of the calling thread inside the functions that it wraps."""

    cpu_ns: int = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start_ns = thread_cpu_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.cpu_ns += thread_cpu_ns() - start_ns

        return timed


@contextmanager
def timing() -> Iterator[Timer]:
    """All that keeps the ledger, timed."""
    timer = Timer()
    fates = {name: timer.around(getattr(Fates, name)) for name in FATES}
    with (
        mock.patch.object(runs_ledger, "insert", timer.around(runs_ledger.insert)),
        mock.patch.multiple(Fates, **fates),
    ):
        yield timer


def measure(actors: int, lanes: int, rows: int, updates: int) -> dict[str, Any]:
    """One run. The shape, the share of CPU time, and bytes for a million transitions."""
    config = parse_config(
        {
            "env": {"id": "CartPole-v1"},
            "algo": "impala",
            "engine": "inline",
            "steps": updates * actors * lanes * rows,
            "actors": {"num": actors, "lanes": lanes, "rows": rows},
            "flow": {"fragments": actors},
            "evaluation": {"every": 0, "final_episodes": 1, "max_ticks": 10},
            "metrics": {"enabled": False},
        }
    )
    with tempfile.TemporaryDirectory() as out, timing() as timer:
        start_ns = process_cpu_ns()
        outcome = train(config, out=out)
        cpu_ns = process_cpu_ns() - start_ns
        with open_registry(Path(out), create=False) as registry:
            tally = registry.ledger_tally(outcome.run)
    transitions = tally.made * lanes * rows
    return {
        "actors": actors,
        "lanes": lanes,
        "rows": rows,
        "fragments": tally.made,
        "cpu_s": round(cpu_ns / NS_PER_S, 1),
        "us_a_fragment": round(timer.cpu_ns / tally.made / 1000, 1),
        "share": timer.cpu_ns / cpu_ns,
        "bytes_a_million": round(tally.num_bytes / transitions * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the ledger costs.")
    parser.add_argument("--updates", type=int, default=300)
    asked = parser.parse_args()
    figures = [measure(*shape, asked.updates) for shape in SHAPES]
    header = ["actors x lanes x rows", "fragments", "CPU s of the run", "µs a fragment", "share", "bytes a million"]
    rows = [
        [
            f"{each['actors']}x{each['lanes']}x{each['rows']}",
            str(each["fragments"]),
            str(each["cpu_s"]),
            str(each["us_a_fragment"]),
            f"{100 * each['share']:.3f} %",
            f"{each['bytes_a_million']:,}",
        ]
        for each in figures
    ]
    met = all(each["share"] < MOST_SHARE for each in figures)
    print(table(header, rows))
    print(f"below {100 * MOST_SHARE:g} % of the CPU time: {mark(met)}")
    print(result_line({"benchmark": "ledger", "runs": figures, "met": met}))


if __name__ == "__main__":
    main()
