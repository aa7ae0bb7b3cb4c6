"""Sections of a configuration that belong to no component: how the run as a whole is carried out."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Literal

from common.errors import ConfigError
from common.ports import PortRange

MAX_LANES = 65_536
MAX_FRAGMENT_ROWS = 1_048_576
WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
COLLECTOR = re.compile(r"https?://[^\s/@?#]+(?:/(?!v1/traces/?$)[^\s@?#]*)?")
SELECTOR = re.compile(rf"(?!(?:CPU|GPU|memory|object_store_memory)$){WORD}(?:={WORD})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorsConfig:
    """How experience is collected.

    Attributes:
        num: actor processes.
        lanes: environments of each actor, B.
        rows: ticks of a fragment, T.
        max_restarts: restarts of one actor within `restart_window` updates before it is given up; the run goes on while
            any actor lives.
        restart_window: in updates.
        least, most: bounds of the pool in asynchronous collection: while the learner starves an actor is added, while
            fragments pile up one is taken away. 0 = `num`, so that the pool keeps its size.
    """

    num: int = 2
    lanes: int = 8
    rows: int = 128
    max_restarts: int = 3
    restart_window: int = 1000
    least: int = 0
    most: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """Of the pool: `least` and `most`, `num` where they are 0."""
        return self.least or self.num, self.most or self.num

    def __post_init__(self) -> None:
        limits = {"num": 4096, "restart_window": 1_000_000_000, "lanes": MAX_LANES, "rows": MAX_FRAGMENT_ROWS}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"actors.{name}", got=getattr(self, name), allowed=f"1 to {most:,}")
        if self.max_restarts < 0:
            raise ConfigError("actors.max_restarts", got=self.max_restarts, allowed="0 or more")
        least, most = self.bounds
        if not 1 <= least <= self.num <= most <= 4096:
            raise ConfigError(
                "actors.least, actors.num, actors.most",
                got=f"{least}, {self.num}, {most}",
                allowed="1 or more each, in ascending order, at most 4,096",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """How fragments flow from actors to the learner.

    Attributes:
        mode: sync = every update takes one fragment of every actor, made by weights at most `policy_lag` updates old:
            no timing can change a bit. async = every actor always has work in flight, and an update takes what has
            arrived; what happened is in the ledger, by which the run can be made again. auto = async for impala and
            appo.
        fragments: of an update, in async; 0 = one for each learner rank.
        max_lag: a fragment whose weights are more updates behind is dropped, and counted.
        first_in_flight: fragments between being told and being trained on, at first; doubles while that makes the
            learner starve, shrinks while it is not used.
        most_in_flight: the largest that it grows to; never more than max_lag x fragments.
        most_bytes: the same in bytes.
    """

    mode: Literal["auto", "sync", "async"] = "auto"
    fragments: int = 0
    max_lag: int = 16
    first_in_flight: int = 16
    most_in_flight: int = 1024
    most_bytes: int = 2 * 2**30

    def __post_init__(self) -> None:
        if self.fragments < 0:
            raise ConfigError("flow.fragments", got=self.fragments, allowed="0 (one for each rank) or more")
        for name in ("max_lag", "first_in_flight", "most_in_flight", "most_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"flow.{name}", got=getattr(self, name), allowed="1 or more")

    def most_fragments(self, *, fragments: int, frame_bytes: int) -> int:
        """The largest number of fragments in flight: by count, by age and by bytes, but enough for one update.

        Args:
            fragments: of an update.
            frame_bytes: of a fragment; 0 where that is not known yet.
        """
        by_bytes = self.most_bytes // frame_bytes if frame_bytes else self.most_in_flight
        return max(fragments, min(self.most_in_flight, self.max_lag * fragments, by_bytes))


def collects_asynchronously(mode: str, algo: str) -> bool:
    """Whether actors collect at their own pace: `flow.mode` as it is for `algo`."""
    return mode == "async" or (mode == "auto" and algo != "ppo")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the run is saved.

    Attributes:
        every: updates between checkpoints; 0 saves with each evaluation and at the end.
        keep_last: newest checkpoints kept; the best is kept besides.
    """

    every: int = 0
    keep_last: int = 3

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError("checkpoint.every", got=self.every, allowed="0 or more updates")
        if self.keep_last < 1:
            raise ConfigError("checkpoint.keep_last", got=self.keep_last, allowed="1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where processes serve `/metrics`, and the driver `/targets` for Prometheus to find them.

    Attributes:
        enabled: false serves nothing.
        host: address to bind; the default is reachable from this machine only. "node" is the own address of whichever
            node a process runs on, 0.0.0.0 every address.
        advertise: name or address under which others reach the driver, for `/targets` and the record; "" = the address
            that is bound, the node's own with 0.0.0.0.
        token_file: file with a token that every request but a probe has to bear; "" = as the environment's
            TRUESTEP_METRICS_TOKEN_FILE says, none without. The driver reads it and hands it on to the others.
        port: of the driver: a port, a range "first-last" (the first free one), or 0 for any free one.
        process_ports: likewise for actors and learner.
        stall_s: the driver's `/livez` says no once the run has made no progress for longer; 0 = a minute more than the
            longest of the deadlines and the start of the process that takes the place, so that what the run mends by
            itself is left to it.
        spans: base address of an OpenTelemetry collector that takes OTLP over HTTP, such as http://collector:4318, for
            spans of rollouts, transfers, updates, sync and publications; "" sends none. Headers and the rest are said
            by OTEL_* variables of each process's environment. Needs the extra `otel`.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    advertise: str = ""
    token_file: str = ""
    port: int | str = 0
    process_ports: int | str = 0
    stall_s: float = 0.0
    spans: str = ""

    def driver_ports(self) -> PortRange:
        """`port`, parsed. Raises ConfigError."""
        return PortRange.parse(str(self.port))

    def other_ports(self) -> PortRange:
        """`process_ports`, parsed. Raises ConfigError."""
        return PortRange.parse(str(self.process_ports))

    def __post_init__(self) -> None:
        if set(self.advertise) & set(" /@"):
            raise ConfigError("metrics.advertise", got=repr(self.advertise), allowed="a name or an address, no port")
        if not 0.0 <= self.stall_s < math.inf:
            raise ConfigError("metrics.stall_s", got=self.stall_s, allowed="0 (by the deadlines) or more, finite")
        if self.spans and not COLLECTOR.fullmatch(self.spans):
            raise ConfigError(
                "metrics.spans",
                got=repr(self.spans),
                allowed="http://host:port or https://host:port, and a path if the collector has one",
                fix="leave /v1/traces away, it is added; credentials belong into OTEL_EXPORTER_OTLP_HEADERS",
            )
        self.driver_ports()
        self.other_ports()


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersConfig:
    """Who gets the numbers of the run besides the registry and `/metrics`. No bit of the run depends on it.

    Attributes:
        tensorboard: write `tensorboard` in the run's directory; needs the extra `tensorboard`.
        wandb: send them to Weights & Biases, by its own variables (`WANDB_MODE`, `WANDB_API_KEY` and the rest); needs
            the extra `wandb`.
        wandb_project: of W&B.
    """

    tensorboard: bool = False
    wandb: bool = False
    wandb_project: str = "truestep"

    def __post_init__(self) -> None:
        if not self.wandb_project or set(self.wandb_project) & set("/\\#?%:"):
            raise ConfigError(
                "writers.wandb_project", got=repr(self.wandb_project), allowed="a name without / \\ # ? % and :"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Which nodes of a Ray cluster the processes are put on. An embedded Ray has one node, and does not look at this.

    Attributes:
        learner: what a node must have for a learner rank to be put there: "" = nothing but a CPU, and a GPU if it
            computes on one; "label=value" = a label (`ray start --labels`); a name alone = a custom resource
            (`ray start --resources`), of which a process takes a thousandth.
        actors: likewise for actors, which are spread over all nodes that have it.
        ranks: pack = on as few nodes as they fit on; strict-pack = on one node; spread = on as many as possible.
        wait_s: for the cluster to have places for every rank and for `actors.least` actors, before the run is refused;
            with an autoscaler, as long as nodes take to start.
    """

    learner: str = ""
    actors: str = ""
    ranks: Literal["pack", "strict-pack", "spread"] = "pack"
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("learner", "actors"):
            if (selector := getattr(self, name)) and not SELECTOR.fullmatch(selector):
                raise ConfigError(
                    f"placement.{name}",
                    got=repr(selector),
                    allowed="label=value, or the name of a custom resource: letters, digits, and . _ / - within",
                    fix="CPU, GPU and memory are no custom resources: every process takes its CPU anyway",
                )
        if not 0.0 <= self.wait_s < math.inf:
            raise ConfigError("placement.wait_s", got=self.wait_s, allowed="0 or more, finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineConfig:
    """How long the driver waits before it gives a process up. Environments have deadlines of their own (env).

    Attributes:
        start_s: for a process to start, environments included.
        collect_s: for one fragment.
        update_s: for one update.
        evaluate_s: for one evaluation.
        snapshot_s: for a process to hand over its state.
        checkpoint_s: for a checkpoint to be written.
    """

    start_s: float = 180.0
    collect_s: float = 300.0
    update_s: float = 600.0
    evaluate_s: float = 900.0
    snapshot_s: float = 120.0
    checkpoint_s: float = 600.0

    @property
    def longest_s(self) -> float:
        """That a run can be busy with one thing, its start excepted."""
        return max(self.collect_s, self.update_s, self.evaluate_s, self.snapshot_s, self.checkpoint_s)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if not 0.0 < getattr(self, each.name) < math.inf:
                raise ConfigError(f"deadlines.{each.name}", got=getattr(self, each.name), allowed="above 0, finite")
