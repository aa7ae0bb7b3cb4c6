"""Samples of stacks, counted: the one form in which every sampler's work is kept and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Stack = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What was seen.

    Attributes:
        counts: samples, or microseconds of CPU, by stack: the thread's name, then "function (file)", outermost first.
        in_us: whether they are microseconds.
        remarks: about how it was sampled, in words.
    """

    counts: Mapping[Stack, int]
    in_us: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())

    def words(self, count: int) -> str:
        """A count with its unit."""
        return f"{count / 1000:,.0f} ms of CPU" if self.in_us else f"{count:,} samples"

    def hottest(self, most: int = 5) -> list[tuple[str, float]]:
        """The functions that were innermost most often, with their share of all."""
        own: Counter[str] = Counter()
        for stack, count in self.counts.items():
            own[stack[-1]] += count
        return [(name, count / self.total) for name, count in own.most_common(most)]


def parse_folded(text: str) -> dict[Stack, int]:
    """Lines "a;b;c 12", as py-spy and the flame graph tools write them. Raises ValueError for another line."""
    counts: Counter[Stack] = Counter()
    for line in text.splitlines():
        if line.strip():
            stack, _, count = line.rpartition(" ")
            counts[tuple(stack.split(";"))] += int(count)
    return dict(counts)


@dataclass(slots=True)
class Node:
    """A frame under the frames that called it.

    Attributes:
        label: "function (file)".
        count: in it or in what it called.
        below: what it called, by label.
    """

    label: str
    count: int = 0
    below: dict[str, Node] = field(default_factory=dict)


def tree_of(counts: Mapping[Stack, int]) -> Node:
    """The stacks as one tree whose root holds all of them."""
    root = Node("all")
    for stack, count in counts.items():
        at = root
        at.count += count
        for label in stack:
            at = at.below.setdefault(label, Node(label))
            at.count += count
    return root
