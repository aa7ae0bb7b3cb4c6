"""The configuration of a run: a tree of the components' own records, and the only checks that look across them.

Layers, each over the one before: the records' defaults, the recipe of the environment, the user's TOML file, flags.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from actors.env.config import EnvConfig
from actors.evaluate import EvaluationConfig
from common.errors import ConfigError
from common.nets import NetConfig
from common.normalize import ProcessingConfig
from deploy.conductor.plan import Flow, Plan
from deploy.config_secrets import check_no_secrets
from deploy.config_sections import (
    ActorsConfig,
    CheckpointConfig,
    DeadlineConfig,
    FlowConfig,
    MetricsConfig,
    PlacementConfig,
    WritersConfig,
    collects_asynchronously,
)
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.algorithms.making import AlgorithmConfig
from learner.algorithms.ppo import PPOConfig
from learner.optimiser import OptimiserConfig
from learner.rank import LearnerConfig

STALL_MARGIN_S = 60.0  # for the driver to notice a deadline, end the process and start another


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes and how it is carried out.

    Attributes:
        algo: the algorithm.
        seed: root of every random stream.
        steps: environment steps after which the run ends.
        engine: ray = processes; inline = everything in this process, deterministic and easy to debug. Both give the
            same parameters, bit for bit.
        policy_lag: in synchronous collection (flow): 0 collects and learns in turn; 1 collects for the next update
            while one is made.
        stop_at_return: end early once an evaluation's mean return reaches this.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    algo: Literal["ppo", "impala", "appo"] = "ppo"
    seed: int = 0
    steps: int = 100_000
    engine: Literal["ray", "inline"] = "ray"
    policy_lag: int = 1
    stop_at_return: float | None = None
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    net: NetConfig = field(default_factory=NetConfig)
    processing: ProcessingConfig = field(default_factory=ProcessingConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    impala: ImpalaConfig = field(default_factory=ImpalaConfig)
    appo: AppoConfig = field(default_factory=AppoConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    writers: WritersConfig = field(default_factory=WritersConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)

    def __post_init__(self) -> None:
        self.env.validate()
        check_no_secrets(self.env.kwargs, "env.kwargs")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("seed", got=self.seed, allowed="0 to 2**63 - 1")
        if self.steps < 1:
            raise ConfigError("steps", got=self.steps, allowed="1 or more")
        if self.stop_at_return is not None:
            if math.isnan(self.stop_at_return):
                raise ConfigError("stop_at_return", got="nan", allowed="a number")
            if not self.evaluation.every:
                raise ConfigError(
                    "stop_at_return needs evaluations during the run",
                    got="evaluation.every = 0",
                    allowed="1 or more updates",
                )
        self._check_algorithm()
        self._check_deadlines()
        self.plan()

    def _check_algorithm(self) -> None:
        if self.algo == "ppo" and self.ppo.minibatch > self.rows_per_update:
            raise ConfigError(
                "ppo.minibatch is larger than an update",
                got=self.ppo.minibatch,
                allowed=f"at most the rows of an update, {self.rows_per_update}",
            )
        if self.algo == "ppo" and self.net.core != "none":
            raise ConfigError(
                "net.core: ppo cuts updates into single rows, and a network that remembers needs them in sequence",
                got=self.net.core,
                allowed="none",
                fix="use --algo appo (the same clipped objective, on sequences) or impala",
            )
        pooled = self.actors.bounds != (self.actors.num, self.actors.num)
        if pooled and not self.asynchronous:
            raise ConfigError(
                "actors.least and actors.most need asynchronous collection: in sync every update takes every actor",
                got=f"{self.actors.bounds[0]} to {self.actors.bounds[1]}",
                fix="use --algo impala or appo, or flow.mode = async",
            )

    def _check_deadlines(self) -> None:
        """A rank gives the others up before the driver gives the rank up: else the loss of one would end them all."""
        collective_s = self.learner.sync.collective_s
        for name in ("update_s", "snapshot_s"):
            if not collective_s < (limit_s := getattr(self.deadlines, name)):
                raise ConfigError(
                    "learner.sync.collective_s is not below deadlines." + name,
                    got=f"{collective_s:g} s and {limit_s:g} s",
                    allowed="a collective's deadline that passes first",
                    fix="lower the one or raise the other",
                )

    @property
    def stall_s(self) -> float:
        """Without progress for longer, the run is stuck: metrics.stall_s, or by the deadlines."""
        return self.metrics.stall_s or self.deadlines.longest_s + self.deadlines.start_s + STALL_MARGIN_S

    def with_ranks(self, ranks: int) -> RunConfig:
        """The same with another number of learner ranks. Raises ConfigError."""
        return dataclasses.replace(self, learner=dataclasses.replace(self.learner, ranks=ranks))

    @property
    def algorithm_config(self) -> AlgorithmConfig:
        """The section of `algo`."""
        sections: dict[str, AlgorithmConfig] = {"ppo": self.ppo, "impala": self.impala, "appo": self.appo}
        return sections[self.algo]

    @property
    def asynchronous(self) -> bool:
        """Whether actors collect at their own pace."""
        return collects_asynchronously(self.flow.mode, self.algo)

    @property
    def max_lag(self) -> int:
        """Updates that the weights of a fragment may be behind."""
        return self.flow.max_lag if self.asynchronous else self.policy_lag

    @property
    def fragments_per_update(self) -> int:
        """One of every actor, or flow.fragments."""
        return (self.flow.fragments or self.learner.ranks) if self.asynchronous else self.actors.num

    @property
    def rows_per_update(self) -> int:
        """fragments_per_update x actors.lanes x actors.rows."""
        return self.fragments_per_update * self.actors.lanes * self.actors.rows

    @property
    def horizon_updates(self) -> int:
        """Updates that schedules run over: ceil(steps / rows_per_update). A run makes a few more, since reset rows
        are no steps; past the horizon a schedule stays at its end."""
        return math.ceil(self.steps / self.rows_per_update)

    def plan(self, *, frame_bytes: int = 0) -> Plan:
        """What the conductor needs of it.

        Args:
            frame_bytes: of a fragment, where that is known: bounds what may be in flight.
        """
        return Plan(
            num_actors=self.actors.num,
            policy_lag=self.policy_lag,
            total_steps=self.steps,
            evaluate_every=self.evaluation.every,
            episodes=self.evaluation.episodes,
            final_episodes=self.evaluation.final_episodes,
            checkpoint_every=self.checkpoint.every,
            stop_at_return=self.stop_at_return,
            flow=self._flow(frame_bytes) if self.asynchronous else None,
            max_restarts=self.actors.max_restarts,
            restart_window=self.actors.restart_window,
            num_ranks=self.learner.ranks,
            max_rank_restarts=self.learner.max_restarts,
            audit_every=self.learner.sync.audit_every,
            collective_s=self.learner.sync.collective_s,
        )

    def _flow(self, frame_bytes: int) -> Flow:
        fragments = self.fragments_per_update
        least, most = self.actors.bounds
        return Flow(
            fragments=fragments,
            max_lag=self.flow.max_lag,
            first_capacity=max(fragments, self.flow.first_in_flight),
            most_capacity=self.flow.most_fragments(fragments=fragments, frame_bytes=frame_bytes),
            least_actors=least,
            most_actors=most,
        )

    def to_plain(self) -> dict[str, Any]:
        """JSON values; `parse_config` reads them back."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


_ADAPTER: TypeAdapter[RunConfig] = TypeAdapter(RunConfig)


def parse_config(plain: Mapping[str, Any]) -> RunConfig:
    """A configuration from nested plain values. Strict: no unknown key, no conversion of types.

    Raises:
        ConfigError: naming the key by its full path, what was got and what is allowed.
    """
    _check_plain(plain)
    text = json.dumps(plain)
    try:
        return _ADAPTER.validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise _first_fault(error) from None


def _check_plain(value: Any, path: str = "") -> None:
    """TOML knows dates and times, which no key of ours takes and no record could hold."""
    match value:
        case Mapping():
            for key, item in value.items():
                _check_plain(item, f"{path}.{key}" if path else str(key))
        case list() | tuple():
            for number, item in enumerate(value):
                _check_plain(item, f"{path}.{number}")
        case bool() | int() | float() | str() | None:
            pass
        case _:
            kind = type(value).__name__
            raise ConfigError(
                f"configuration key {path!r}",
                got=f"{value} ({kind})",
                allowed="text, numbers, true, false, lists, tables",
            )


UNION_MEMBERS = ("int", "str", "float", "bool")


def _first_fault(error: ValidationError) -> ConfigError:
    """The first key at fault; a key that may have several types is one fault, though pydantic counts each type."""
    faults = [(_key_of(fault["loc"]), fault) for fault in error.errors(include_url=False)]
    path, fault = faults[0]
    others = len({each for each, _ in faults} - {path})
    more = f" (and {others} more)" if others else ""
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        path = ".".join(str(part) for part in fault["loc"])
        known = _keys_at(fault["loc"][:-1])
        close = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else ""
        return ConfigError(f"unknown configuration key {path!r}{more}", allowed=", ".join(known), fix=hint)
    allowed = " or ".join(other["msg"].removeprefix("Input should be ") for each, other in faults if each == path)
    return ConfigError(f"configuration key {path!r}{more}", got=repr(fault["input"]), allowed=allowed)


def _key_of(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part not in UNION_MEMBERS)


def _keys_at(path: Iterable[Any]) -> list[str]:
    kind: Any = RunConfig
    for part in path:
        default = next(each for each in dataclasses.fields(kind) if each.name == part).default_factory
        kind = cast(Any, default)
    return [each.name for each in dataclasses.fields(kind)]


def merge(below: Mapping[str, Any], above: Mapping[str, Any], *, single_value: bool = False) -> dict[str, Any]:
    """`above` over `below`, table by table. `env.kwargs` of another layer is replaced whole, not mixed.

    Args:
        single_value: `above` is one `setting`, which changes that value only, be it one of `env.kwargs`.
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping) and (key != "kwargs" or single_value):
            merged[key] = merge(under, value, single_value=single_value)
        else:
            merged[key] = value
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values. Raises ConfigError naming file, line and fault."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("configuration file does not exist", got=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read", got=error) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not TOML", got=error) from None


def recipe(algo: str, env_id: str) -> tuple[str, dict[str, Any]]:
    """Name and values of the recipe shipped for an environment, or of the algorithm's default."""
    folder = resources.files("deploy") / "recipes"
    bare = env_id.rpartition(":")[2].replace("/", "-")
    for name in (f"{algo}-{bare}", f"{algo}-default"):
        file = folder / f"{name}.toml"
        if file.is_file():
            return name, tomllib.loads(file.read_text(encoding="utf-8"))
    raise ConfigError("algorithm without a recipe", got=algo, allowed="ppo, impala or appo")


def setting(text: str) -> dict[str, Any]:
    """`a.b=value` as nested values; the value is read as TOML, and as a bare string where it is not TOML.

    Raises:
        ConfigError: no `=`, no key, or more than one value.
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError("--set", got=text, allowed="key.path=value")
    try:
        document = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        document = {"value": value.strip()}
    if len(document) > 1:
        raise ConfigError("--set", got=text, allowed="one key.path=value")
    parsed: Any = document["value"]
    for key in reversed(keys):
        parsed = {key: parsed}
    return cast(dict[str, Any], parsed)
