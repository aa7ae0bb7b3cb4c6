"""The work that every contender is given: same environments, networks, batch, epochs and minibatch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

ENV = "CartPole-v1"
HIDDEN = (64, 64)
EPOCHS = 4
LEARNING_RATE = 3e-4
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
VALUE_COEFFICIENT = 0.5
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-5
EXIT_NOT_INSTALLED = 3  # exit code of an optional peer that is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One shape of the work.

    Attributes:
        lanes: environments stepped side by side, all processes together.
        rows: ticks between updates; an update takes lanes x rows rows.
        minibatch: rows of a gradient step.
    """

    lanes: int
    rows: int
    minibatch: int

    @property
    def name(self) -> str:
        """lanes x rows, as in `256x32`."""
        return f"{self.lanes}x{self.rows}"

    def arguments(self) -> list[str]:
        """As flags of a contender's command."""
        return [f"--lanes={self.lanes}", f"--rows={self.rows}", f"--minibatch={self.minibatch}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a contender's command is told.

    Attributes:
        setting: the work.
        seconds: length of the reading.
        warmup_s: what goes before it.
        threads: intra-op threads of torch.
        allocator: keep freed memory, as truestep's processes do.
        seed: of everything random.
    """

    setting: Setting
    seconds: float
    warmup_s: float
    threads: int
    allocator: bool
    seed: int


def parse_order(description: str, arguments: Sequence[str] | None = None) -> Order:
    """The command line of a contender."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--minibatch", type=int, default=2048)
    parser.add_argument("--allocator", action="store_true", help="common.process.keep_freed_memory()")
    add_reading_flags(parser)
    got = parser.parse_args(arguments)
    check_flags(parser, got, "lanes", "rows", "minibatch")
    return Order(
        setting=Setting(lanes=got.lanes, rows=got.rows, minibatch=got.minibatch),
        seconds=got.seconds,
        warmup_s=got.warmup,
        threads=got.threads,
        allocator=got.allocator,
        seed=got.seed,
    )


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """How a reading is taken; the same for every contender and every work."""
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the reading")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds of training before it")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of torch")
    parser.add_argument("--seed", type=int, default=0)


def check_flags(parser: argparse.ArgumentParser, got: argparse.Namespace, *counts: str) -> None:
    """End the command where a flag means nothing: `counts` and the threads below 1, a reading without length."""
    for name in (*counts, "threads"):
        if getattr(got, name) < 1:
            parser.error(f"--{name}: got {getattr(got, name)}, allowed: 1 or more")
    if not got.seconds > 0.0 or not got.warmup >= 0.0:
        parser.error(f"--seconds, --warmup: got {got.seconds}, {got.warmup}; allowed: above 0, 0 or more")
