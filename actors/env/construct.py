"""Constructing the user's environment: one clear error for each way in which it fails.

Gymnasium's own warnings (old versions, render modes, its passive checker) are switched off for the process: the
checker is looser than our contract, and under `-W error` they would end a run that is sound.
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from actors.env import plain_state
from actors.env.config import EnvConfig
from actors.env.seat import Seat
from common.errors import ConfigError, ContractError, EnvironmentFault, TruestepError
from common.rng import GlobalGenerators, Purpose

NUM_SUGGESTIONS = 3
SPACE_NAMES = ("observation_space", "action_space", "single_observation_space", "single_action_space")


def find_spec(config: EnvConfig) -> EnvSpec:
    """The registered spec of `config.id`, its module imported. Raises `ConfigError`, `EnvironmentFault`."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
    module, _, name = config.id.rpartition(":")
    if module:
        _import(module, config.id)
    spec = gymnasium.registry.get(name)
    if spec is None:
        close = difflib.get_close_matches(name, list(gymnasium.registry), NUM_SUGGESTIONS, cutoff=0.5)
        raise ConfigError(
            f"env.id: no environment {name!r} is registered",
            got=repr(config.id),
            allowed=f"a registered id; close ones: {', '.join(close)}" if close else "a registered id",
            fix="" if module else "if another package registers it, write 'module:Id'",
        )
    return spec


def uses_entry_point(config: EnvConfig, spec: EnvSpec) -> bool:
    """Whether the environment vectorises itself. Raises `ConfigError` if that was asked for and it cannot."""
    if config.vectorise == "own" and spec.vector_entry_point is None:
        raise ConfigError(
            f"env.vectorise: environment {config.id!r} has no vector entry point",
            got="'own'",
            allowed="'auto', 'sync' or 'async'",
        )
    possible = spec.vector_entry_point is not None and not spec.additional_wrappers
    return config.vectorise == "own" or (config.vectorise == "auto" and possible)


def construct_one(config: EnvConfig, spec: EnvSpec, seat: Seat) -> gymnasium.Env[Any, Any]:
    """One plain environment. Raises `ConfigError`, `ContractError` or `EnvironmentFault`."""
    kwargs = dict(config.kwargs)
    env: gymnasium.Env[Any, Any] = _constructed(
        config, seat, lambda: gymnasium.make(spec, disable_env_checker=True, **kwargs)
    )
    return env


def construct_vector(
    config: EnvConfig, spec: EnvSpec, num_lanes: int, seat: Seat
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The id's own vector environment. Raises as `construct_one` does."""
    mode, kwargs = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT, dict(config.kwargs)
    vector: gymnasium.vector.VectorEnv[Any, Any, Any] = _constructed(
        config, seat, lambda: gymnasium.make_vec(spec, num_envs=num_lanes, vectorization_mode=mode, **kwargs)
    )
    return vector


def seed_spaces(env: Any, seat: Seat) -> None:
    """Seed every space of the wrapper chain: spaces draw from generators of their own that `reset` never seeds."""
    for depth, which, space in _spaces(env):
        space.seed(seat.seed(Purpose.SPACE, depth, which))


def space_states(env: Any) -> list[Any]:
    """States of the generators of every space of the wrapper chain, as plain values; about 20 µs a space."""
    return plain_state.take([space for _, _, space in _spaces(env)])


def set_space_states(env: Any, states: list[Any]) -> None:
    """Put back what `space_states` took. Raises `CheckpointError` if `env` has other spaces."""
    plain_state.put([space for _, _, space in _spaces(env)], states)


def _spaces(env: Any) -> Iterator[tuple[int, int, gymnasium.Space[Any]]]:
    """Depth, position and space, outermost wrapper first, each space once."""
    seen: set[int] = set()
    layer, depth = env, 0
    while layer is not None:
        for which, name in enumerate(SPACE_NAMES):
            space = getattr(layer, name, None)
            if isinstance(space, gymnasium.Space) and id(space) not in seen:
                seen.add(id(space))
                yield depth, which, space
        layer, depth = vars(layer).get("env"), depth + 1


def put_on_fresh(env: Any, state: Any, seat: Seat) -> None:
    """Reset a fresh environment, so that it has the objects a running one has, then put `state` on it.

    Leaves the process-wide generators as they were. Raises `CheckpointError` if the state does not fit.
    """
    with GlobalGenerators(seat.child_globals()).installed():
        seat.run("reset", None, env.reset, seed=seat.episode_seed(0))
        plain_state.put(env, state)


def _constructed(config: EnvConfig, seat: Seat, construct: Callable[[], Any]) -> Any:
    try:
        return construct()
    except TruestepError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(
            f"{seat.describe()}: something it needs is not installed",
            got=str(error),
            fix="install it where the actors run",
            detail=seat.fault("construct", None, error).detail,
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything; nothing is lost
        if refusal := _refusal(config, error):
            raise refusal from None
        raise seat.fault("construct", None, error) from None


def _refusal(config: EnvConfig, error: BaseException) -> TruestepError | None:
    """What the user can mend in the configuration or the registration; None if the constructor itself failed."""
    text = str(error)
    if isinstance(error, TypeError) and "must inherit from the gymnasium.Env" in text:
        return ContractError(f"environment {config.id!r}: its entry point makes no gymnasium.Env", got=text)
    unexpected = "unexpected keyword argument" in text and any(f"'{key}'" in text for key in config.kwargs)
    missing = isinstance(error, TypeError) and "required" in text and "argument" in text and _raised_by_call(error)
    if isinstance(error, TypeError) and (unexpected or missing):
        return ConfigError(f"env.kwargs: environment {config.id!r} does not take these arguments", got=text)
    if isinstance(error, gymnasium.error.Error):
        return ConfigError(f"environment {config.id!r} cannot be made", got=text)
    return None


def _raised_by_call(error: BaseException) -> bool:
    """True if binding the arguments failed, before the first line of the constructor ran."""
    origin = (error.__cause__ or error).__traceback__
    return origin is not None and origin.tb_next is None


def _import(module: str, environment: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env.id: the module of {environment!r} cannot be imported",
            got=str(error),
            allowed="an importable module before the colon",
            fix="install it, or put it on PYTHONPATH, where the actors run",
        ) from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        detail = "".join(traceback.format_exception(error))
        raise EnvironmentFault(
            f"environment {environment!r}: importing {module} raised {type(error).__name__}",
            got=str(error),
            detail=detail,
        ) from None
