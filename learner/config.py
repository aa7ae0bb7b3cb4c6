"""Where and how a rank computes, and all that one rank is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from common.errors import ConfigError
from common.fragment import FragmentLayout
from common.nets import NetConfig
from common.normalize import ProcessingConfig
from learner.algorithms.making import AlgorithmConfig
from learner.algorithms.ppo import PPOConfig
from learner.optimiser import OptimiserConfig
from learner.parallel.config import SyncConfig

MAX_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Where and how a rank computes.

    Attributes:
        ranks: processes that make each update together, each from its share of the fragments.
        device: auto = the first GPU if there is one, else the CPU.
        threads: intra-op threads; part of the fingerprint, since two threads round differently from one.
        precision: of matrix products and convolutions in forward and backward passes. bfloat16 is faster for
            convolutions where the processor has matrix units for it (AMX, a GPU's), and slower elsewhere; parameters,
            gradients, moments and all that is added up over ranks stay float32. For convolutional networks and those of
            net.factory.
        max_restarts: rank processes that may be lost within 1,000 updates before the run is given up.
        sync: how ranks keep in step.
    """

    ranks: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    max_restarts: int = 3
    sync: SyncConfig = field(default_factory=SyncConfig)

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ConfigError("learner.ranks", got=self.ranks, allowed=f"1 to {MAX_RANKS}")
        if self.threads < 1:
            raise ConfigError("learner.threads", got=self.threads, allowed="1 or more")
        if self.max_restarts < 0:
            raise ConfigError("learner.max_restarts", got=self.max_restarts, allowed="0 or more")

    def torch_device(self) -> torch.device:
        """The device meant by `device`. Raises ConfigError if it is not there."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("learner.device", got="cuda, but torch sees no GPU here", allowed="cpu or auto")
        use_gpu = self.device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if use_gpu else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """All that one rank is made from: plain configuration records, so it travels to another process."""

    run: str
    seed: int
    horizon_updates: int
    max_lag: int
    layout: FragmentLayout
    learner: LearnerConfig
    net: NetConfig
    optimiser: OptimiserConfig
    algorithm: AlgorithmConfig
    processing: ProcessingConfig = field(default_factory=ProcessingConfig)

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, PPOConfig) and self.net.core != "none":
            raise ConfigError(
                "ppo trains no recurrent network: it shuffles rows",
                got=f"net.core = {self.net.core!r}",
                allowed="'none'",
                fix="use algo = 'appo' or 'impala'",
            )
