"""Who takes part in the throughput benchmark, and how one reading of each is taken: a fresh process every time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from benchmarks.peers.setting import EXIT_NOT_INSTALLED
from benchmarks.rates import Rate

ROOT = Path(__file__).resolve().parents[1]
START_AND_END_S = 180.0  # for a contender's start and end; Ray starts four processes


class Work(Protocol):
    """What a contender is to do."""

    @property
    def name(self) -> str:
        """In messages."""
        ...

    def arguments(self) -> list[str]:
        """As flags of its command."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One program.

    Attributes:
        name: in tables and results.
        module: run with `python -m`.
        flags: besides those of the setting.
        threads: intra-op threads of torch.
        python: interpreter; ours unless the peers live in an environment of their own.
    """

    name: str
    module: str
    flags: tuple[str, ...] = ()
    threads: int = 1
    python: str = sys.executable

    def command(self, setting: Work, *, seconds: float, warmup_s: float) -> list[str]:
        """The command line of one reading."""
        lengths = [f"--seconds={seconds}", f"--warmup={warmup_s}", f"--threads={self.threads}"]
        return [self.python, "-m", self.module, *setting.arguments(), *lengths, *self.flags]

    def with_threads(self, threads: int) -> Contender:
        """The same with another thread count."""
        return replace(self, threads=threads)


class NotInstalled(Exception):
    """A peer that this machine does not have; the message is the reason."""


def take_reading(contender: Contender, setting: Work, *, seconds: float, warmup_s: float) -> Rate:
    """Run it once, alone.

    Raises:
        NotInstalled: an optional peer is missing.
        RuntimeError: it failed, did not end in time, or printed no reading.
    """
    command = contender.command(setting, seconds=seconds, warmup_s=warmup_s)
    limit_s = seconds + warmup_s + START_AND_END_S
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{contender.name} at {setting.name} did not end within {limit_s:g} s") from None
    if done.returncode == EXIT_NOT_INSTALLED:
        raise NotInstalled(done.stderr.strip())
    if done.returncode != 0:
        where = f"{contender.name} at {setting.name}"
        raise RuntimeError(f"{where} ended with {done.returncode}; {' '.join(command)}\n{done.stderr[-2000:]}")
    return Rate.read(done.stdout)


def truestep(*, policy_lag: int = 1, metrics: bool = True) -> Contender:
    """Ours."""
    name = "truestep" + ("" if policy_lag else ", lag 0") + ("" if metrics else ", no metrics")
    flags = (f"--policy-lag={policy_lag}", *(() if metrics else ("--no-metrics",)))
    return Contender(name=name, module="benchmarks.truestep_ppo", flags=flags)


def plain(*, allocator: bool = False) -> Contender:
    """The plain single-process opponent, as it is or with our allocator settings."""
    if allocator:
        return Contender(name="plain, our allocator", module="benchmarks.peers.plain_ppo", flags=("--allocator",))
    return Contender(name="plain", module="benchmarks.peers.plain_ppo")


def sb3(python: str = sys.executable) -> Contender:
    """Stable-Baselines3, where it is installed."""
    return Contender(name="sb3", module="benchmarks.peers.sb3_ppo", python=python)


def truestep_impala(*, bfloat16: bool = False) -> Contender:
    """Ours."""
    name, flags = ("truestep, bfloat16", ("--bfloat16",)) if bfloat16 else ("truestep", ())
    return Contender(name=name, module="benchmarks.truestep_impala", flags=flags)


def rllib(
    python: str = sys.executable, *, vectorise: str = "vector_entry_point", learners: int = 0, our_module: bool = False
) -> Contender:
    """RLlib's IMPALA: how it holds environments, whether its learner is a process or a thread of its driver, and
    whether it computes with its own model or with one that was written for it here."""
    name, module = ("rllib, our module", "ours") if our_module else ("rllib", "own")
    flags = (f"--vectorise={vectorise}", f"--learners={learners}", f"--module={module}")
    return Contender(name=name, module="benchmarks.peers.rllib_impala", flags=flags, python=python)


def plain_pong(*, bfloat16: bool = False) -> Contender:
    """The plain single-process opponent on Pong."""
    name, flags = ("plain, bfloat16", ("--bfloat16",)) if bfloat16 else ("plain", ())
    return Contender(name=name, module="benchmarks.peers.plain_pong", flags=flags)
