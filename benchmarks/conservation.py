"""What conservation catches: the share of flipped bits that the sums before and after a reduce find, by bit.

    python -m benchmarks.conservation [--trials N]

Two ranks; one bit of one element of one summand flips after it was weighed and before it was added, so the wrong sum
reaches both ranks alike and no digest differs. Elements are drawn as gradients are: a normal number times a log-normal
one (σ = 2), so that most are small and a few are large. The table is Markdown: a row for each bit, a column for each
size of a bucket, and for each size one more for flips of the thousandth of elements that are largest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from learner.parallel.conservation import Scale, conserved
from learner.parallel.faults import flip_bit

SIZES = (10_000, 1_000_000)
BITS = range(31, -1, -1)
LARGEST = 1_000  # one in so many elements is one of the largest
PARTS = {31: "sign", **dict.fromkeys(range(23, 31), "exponent"), **dict.fromkeys(range(23), "mantissa")}


def summand(rng: np.random.Generator, num_elements: int) -> NDArray[np.float32]:
    """One rank's gradient."""
    spread = np.exp(2.0 * rng.standard_normal(num_elements))
    return (1e-3 * rng.standard_normal(num_elements) * spread).astype(np.float32)


class Bucket:
    """A bucket of two ranks: weighed, and reduced with one bit of the first summand wrong."""

    def __init__(self, rng: np.random.Generator, num_elements: int) -> None:
        self.summands = [torch.from_numpy(summand(rng, num_elements)) for _ in range(2)]
        self.largest = self.summands[0].abs().argsort(descending=True)[: max(1, num_elements // LARGEST)].numpy()
        self._put_in = [Scale(each).measure()() for each in self.summands]
        self._reduced = self.summands[0] + self.summands[1]
        self._scale = Scale(self._reduced)

    def catches(self, element: int, bit: int) -> bool:
        """Whether the sums find the flip. The bucket is whole again afterwards."""
        wrong = self.summands[0][element : element + 1].clone()
        flip_bit(wrong, 0, bit)
        right = self._reduced[element].item()
        self._reduced[element] = (wrong + self.summands[1][element])[0]
        totals, tolerances = zip(*((each.total, each.tolerance) for each in self._put_in), strict=True)
        caught = not conserved(list(totals), list(tolerances), self._scale.total()())
        self._reduced[element] = right
        return caught


def shares(num_elements: int, trials: int, *, largest: bool, seed: int = 0) -> dict[int, float]:
    """Share of flips that are caught, by bit; of any elements, or of the largest only."""
    rng = np.random.default_rng(seed)
    bucket = Bucket(rng, num_elements)
    chosen = bucket.largest if largest else np.arange(num_elements)
    return {bit: float(np.mean([bucket.catches(int(i), bit) for i in rng.choice(chosen, trials)])) for bit in BITS}


def table(columns: dict[str, dict[int, float]]) -> str:
    """Markdown: neighbouring bits with equal rows share one."""

    def row(bit: int) -> tuple[str, ...]:
        return PARTS[bit], *(_percent(column[bit]) for column in columns.values())

    lines = ["| bit | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for (part, *figures), group in groupby(BITS, key=row):
        first, *_, last = [*group] * 2
        name = f"{first}" if first == last else f"{first} to {last}"
        lines.append(f"| {name} ({part}) | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def measure(sizes: Sequence[int], trials: int) -> dict[str, dict[int, float]]:
    """All columns of the table."""
    columns: dict[str, dict[int, float]] = {}
    for size in sizes:
        columns[f"{size:,} elements"] = shares(size, trials, largest=False)
        columns[f"{size:,}, the largest"] = shares(size, trials, largest=True)
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description="What conservation catches, by bit.")
    parser.add_argument("--trials", type=int, default=300, help="flips of each bit, at least 1 (default 300)")
    trials: int = parser.parse_args().trials
    if trials < 1:
        parser.error(f"--trials: got {trials}, allowed: 1 or more")
    torch.set_num_threads(1)
    columns = measure(SIZES, trials)
    print(table(columns))
    print("RESULT " + json.dumps({"benchmark": "conservation", "trials": trials, "caught": columns}))


if __name__ == "__main__":
    main()
