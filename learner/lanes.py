"""Minibatches of whole lanes, for algorithms that need rows in their order.

Minibatch m of M is lanes m B / M to (m + 1) B / M of every fragment of every rank. How many valid rows that comes to is
agreed on before the first step, so that the parts of all ranks add up to means over the minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.sequences import Sequences


def lane_bounds(num_lanes: int, minibatch: int, num_minibatches: int) -> tuple[int, int]:
    """First lane of minibatch number `minibatch`, and the one behind its last."""
    return minibatch * num_lanes // num_minibatches, (minibatch + 1) * num_lanes // num_minibatches


def minibatch_of(sequences: Sequence[Sequences], minibatch: int, num_minibatches: int) -> list[Sequences]:
    """The lanes of each fragment that minibatch number `minibatch` is made of."""
    return [each.lanes(*lane_bounds(each.num_lanes, minibatch, num_minibatches)) for each in sequences]


def count_rows(sequences: Sequence[Sequences], num_minibatches: int) -> NDArray[np.float64]:
    """Valid rows of each minibatch [M] in the fragments of one rank."""
    counts = [
        sum(int(np.count_nonzero(each.valid)) for each in minibatch_of(sequences, number, num_minibatches))
        for number in range(num_minibatches)
    ]
    return np.array(counts, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LanePlan:
    """The minibatches of one update; the same on every rank.

    Attributes:
        counts: valid rows by place and minibatch [R, M].
        epochs: passes over the minibatches.
    """

    counts: NDArray[np.float64]
    epochs: int

    @property
    def num_steps(self) -> int:
        """Gradient steps of the update: one for each minibatch that has a valid row, in each epoch."""
        return self.epochs * int(np.count_nonzero(self.counts.sum(0)))

    def rows(self, minibatch: int) -> int:
        """Valid rows of a minibatch on all ranks together."""
        return int(self.counts[:, minibatch].sum())

    def order(self, shuffle: np.random.Generator) -> Iterator[int]:
        """Minibatches in the order of the steps: every epoch in an order of its own, drawn from `shuffle`."""
        for _ in range(self.epochs):
            yield from (int(m) for m in shuffle.permutation(self.counts.shape[1]) if self.rows(m))

    def matches(self, place: int, sequences: Sequence[Sequences]) -> bool:
        """Whether these have as many rows in each minibatch as the rank at `place` says."""
        return np.array_equal(count_rows(sequences, self.counts.shape[1]), self.counts[place])
