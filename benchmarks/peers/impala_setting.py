"""The work of the IMPALA benchmarks: same environments, actors, lanes, rows, network and constants for everybody.

A fragment is what one actor collects between two looks at new weights, lanes x rows; an update takes one fragment and
passes over it once, in one gradient step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers import setting as ppo

CARTPOLE = "CartPole-v1"
PONG = "ALE/Pong-v5"
ENVIRONMENTS = (CARTPOLE, PONG)
LEARNING_RATE = ppo.LEARNING_RATE
DISCOUNT = ppo.DISCOUNT
VALUE_COEFFICIENT = ppo.VALUE_COEFFICIENT
ENTROPY_COEFFICIENT = 0.01
MAX_GRADIENT_NORM = ppo.MAX_GRADIENT_NORM
ADAM_EPSILON = ppo.ADAM_EPSILON
HIDDEN = ppo.HIDDEN  # CartPole: separate tanh towers for policy and value
FEATURES = 512  # Pong: the convolutions of Mnih et al. (2015), one hidden layer, policy and value on top of it
PONG_THREADS = 1  # of ALE's vector environment in each actor; the actors share the cores already


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaSetting:
    """One shape of the work.

    Attributes:
        env: CARTPOLE or PONG.
        actors: processes that collect.
        lanes: environments of each.
        rows: ticks of a fragment.
    """

    env: str
    actors: int
    lanes: int
    rows: int

    @property
    def name(self) -> str:
        """Environment, actors x lanes x rows, as in `CartPole-v1 2x256x32`."""
        return f"{self.env} {self.actors}x{self.lanes}x{self.rows}"

    @property
    def rows_per_update(self) -> int:
        """lanes x rows: one fragment."""
        return self.lanes * self.rows

    def arguments(self) -> list[str]:
        """As flags of a contender's command."""
        return [f"--env={self.env}", f"--actors={self.actors}", f"--lanes={self.lanes}", f"--rows={self.rows}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaOrder:
    """What a contender's command is told: the work, and the reading as in `benchmarks.peers.setting.Order`."""

    setting: ImpalaSetting
    seconds: float
    warmup_s: float
    threads: int
    seed: int


def impala_parser(description: str) -> argparse.ArgumentParser:
    """The flags that all contenders have; a contender may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", choices=ENVIRONMENTS, default=CARTPOLE)
    parser.add_argument("--actors", type=int, default=2, help="processes that collect")
    parser.add_argument("--lanes", type=int, default=256, help="environments of each")
    parser.add_argument("--rows", type=int, default=32, help="ticks of a fragment")
    ppo.add_reading_flags(parser)
    return parser


def parse_impala_order(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[ImpalaOrder, argparse.Namespace]:
    """The command line of a contender, and whatever flags it added itself."""
    got = parser.parse_args(arguments)
    ppo.check_flags(parser, got, "actors", "lanes", "rows")
    setting = ImpalaSetting(env=got.env, actors=got.actors, lanes=got.lanes, rows=got.rows)
    order = ImpalaOrder(setting=setting, seconds=got.seconds, warmup_s=got.warmup, threads=got.threads, seed=got.seed)
    return order, got
