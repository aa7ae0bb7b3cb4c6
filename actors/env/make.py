"""From a config to lanes: what is constructed, where, and what is checked before the first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from actors.env.child import Report, run_in_child
from actors.env.config import EnvConfig
from actors.env.construct import construct_one, construct_vector, find_spec, seed_spaces, uses_entry_point
from actors.env.lane import Lane, LaneRecipe
from actors.env.lanes import Lanes, Verdict
from actors.env.ports import AsyncPort, Port, SyncPort
from actors.env.proof import prove
from actors.env.rendering import Rendering
from actors.env.seat import Seat
from actors.env.spaces import ActionWriter, ObservationReader
from actors.env.vector_lanes import VectorLanes, declared_mode
from actors.env.wrapped_lanes import WrappedLanes
from common.clock import Clock, MonotonicClock
from common.errors import ConfigError
from common.process import die_with_parent
from common.rng import Role, Streams
from common.specs import ArraySpec, SpaceSpec

DRIVER = "the driver's check"


def make_lanes(
    config: EnvConfig,
    num_lanes: int,
    *,
    streams: Streams,
    role: Role,
    index: int,
    incarnation: int,
    who: str,
    rendering: Rendering | None = None,
) -> Lanes:
    """Construct `num_lanes` environments and check what they declare.

    Asynchronous lanes are forked children that die with the *thread* that calls this: call it from one that lives as
    long as the lanes.

    Args:
        config: which environment, and how.
        num_lanes: B, at least 1.
        streams, role, index, incarnation: whose random streams; also those of the children's process-wide generators.
        who: the owner in error messages, such as `actor 3`.
        rendering: which lane is to be seen, and how; see `actors.env.rendering.check_renders`.

    Raises:
        ConfigError: an unknown id, wrong arguments, something not installed.
        ContractError: spaces that are not supported, lanes that differ, an undeclared autoreset mode.
        EnvironmentFault: the environment raised (its traceback is in `detail`) or its process ended.
        DeadlineError: asynchronous lanes did not construct in time.
    """
    config.validate()
    if num_lanes < 1:
        raise ConfigError("number of lanes", got=num_lanes, allowed="at least 1")
    spec = find_spec(config)
    own = uses_entry_point(config, spec)
    seat = seat_of(config, own, streams=streams, role=role, index=index, incarnation=incarnation, who=who)
    proof = partial(prove_restorable, config, streams=streams, who=who)
    if own:
        seen = config if rendering is None else rendering.config(config)
        return _vector_lanes(seen, spec, num_lanes, seat, proof)
    return _wrapped_lanes(config, spec, num_lanes, seat, _vectorised(config), proof, rendering=rendering)


def read_specs(config: EnvConfig, clock: Clock | None = None) -> tuple[SpaceSpec, ArraySpec]:
    """Construct one lane, read what it declares, close it: observation and action spec.

    In a child process (about 20 ms more), so that an environment which hangs or crashes cannot take the driver with it.
    Raises as `make_lanes`; `DeadlineError` and a process that ended are told of any environment.
    """
    config.validate()

    def work(report: Report) -> None:
        report.phase("construct", config.construct_deadline_s)
        spec = find_spec(config)
        own = uses_entry_point(config, spec)
        seat = seat_of(config, own, streams=Streams(0), role=Role.DRIVER, index=0, incarnation=0, who=DRIVER)
        if not own:
            recipe = read_recipe(config, spec, seat, before_close=lambda: report.phase("close", config.step_deadline_s))
            report.fact((recipe.reader.spec, recipe.writer.spec))
            return
        lanes = _vector_lanes(config, spec, 1, seat, _no_proof)
        report.phase("close", config.step_deadline_s)
        lanes.close()
        report.fact((lanes.observation, lanes.action))

    outcome = run_in_child(work, who=f"environment {config.id!r}, {DRIVER}", clock=clock or MonotonicClock())
    if outcome.error is not None:
        raise outcome.error
    (specs,) = outcome.facts
    return specs  # type: ignore[no-any-return]


def prove_restorable(
    config: EnvConfig, *, streams: Streams, who: str = "the proof", clock: Clock | None = None
) -> Verdict:
    """How environments come back from a snapshot, tried on twins; asynchronous ones in children, as they will run.

    One lane, or two where the environment vectorises itself. Three sets of lanes are made, four where the first way
    fails, and each set of single environments makes one more to read its spaces.
    """
    spec = find_spec(config)
    own = uses_entry_point(config, spec)
    seat = seat_of(config, own, streams=streams, role=Role.CHECKER, index=0, incarnation=0, who=f"{who} (proof)")

    vectorised = _vectorised(config)

    def make() -> VectorLanes | WrappedLanes:
        if own:
            return _vector_lanes(config, spec, 2, seat, _no_proof)
        return _wrapped_lanes(config, spec, 1, seat, vectorised, _no_proof, recording=True)

    return prove(make, streams, clock or MonotonicClock())


def seat_of(
    config: EnvConfig, own: bool, *, streams: Streams, role: Role, index: int, incarnation: int, who: str
) -> Seat:
    """That of lane 0, or of all lanes of an environment that vectorises itself."""
    return Seat(
        environment=config.id,
        who=who,
        lane=None if own else 0,
        streams=streams,
        role=role,
        index=index,
        incarnation=incarnation,
    )


def _vectorised(config: EnvConfig) -> str:
    """How lanes of our own are held."""
    return "async" if config.vectorise == "async" else "sync"


def _no_proof() -> Verdict:
    return Verdict(restores="no", reason="lanes of a proof are not proven themselves")


def _vector_lanes(
    config: EnvConfig, spec: EnvSpec, num_lanes: int, seat: Seat, proof: Callable[[], Verdict]
) -> VectorLanes:
    vector = construct_vector(config, spec, num_lanes, seat)
    reader = ObservationReader(vector.single_observation_space, config.id)
    writer = ActionWriter(vector.single_action_space, config.id)
    mode = declared_mode(vector, seat)
    _check_batching(vector, num_lanes, seat)
    seed_spaces(vector, seat)
    return VectorLanes(config, seat, vector, reader=reader, writer=writer, mode=mode, prove=proof)


def _check_batching(vector: Any, num_lanes: int, seat: Seat) -> None:
    if vector.num_envs != num_lanes:
        raise seat.breach("num_envs", str(vector.num_envs), f"{num_lanes}, as was asked for")
    for name in ("observation_space", "action_space"):
        expected = batch_space(getattr(vector, f"single_{name}"), num_lanes)
        if getattr(vector, name) != expected:
            raise seat.breach(
                name, str(getattr(vector, name)), str(expected), fix=f"declare batch_space(single_{name}, num_envs)"
            )


def _wrapped_lanes(
    config: EnvConfig,
    spec: EnvSpec,
    num_lanes: int,
    seat: Seat,
    vectorised: str,
    proof: Callable[[], Verdict],
    *,
    recording: bool = False,
    rendering: Rendering | None = None,
) -> WrappedLanes:
    recipe = read_recipe(config, spec, seat)
    recipes = [recipe] * num_lanes
    if rendering is not None:
        seen = partial(construct_one, rendering.config(config), spec)
        recipes[rendering.lane] = replace(recipe, construct=seen)
    makers = [_lane_maker(replace(seat, lane=lane), each, os.getpid()) for lane, each in enumerate(recipes)]
    port: Port
    if vectorised == "sync":
        port = SyncPort(SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP))
    else:
        vector = AsyncVectorEnv(makers, copy=False, context="fork", autoreset_mode=AutoresetMode.NEXT_STEP)
        port = AsyncPort(vector, replace(seat, lane=None), config.step_deadline_s)
    lanes = WrappedLanes(config, num_lanes, recipe, vectorised=vectorised, port=port, prove=proof, recording=recording)
    try:
        lanes.open()
    except BaseException:
        lanes.close()
        raise
    return lanes


def read_recipe(
    config: EnvConfig, spec: EnvSpec, seat: Seat, before_close: Callable[[], None] = lambda: None
) -> LaneRecipe:
    """Read the spaces off a first environment, which is closed again."""
    first = construct_one(config, spec, seat)
    try:
        return LaneRecipe(
            construct=partial(construct_one, config, spec),
            observation_space=first.observation_space,
            action_space=first.action_space,
            reader=ObservationReader(first.observation_space, config.id),
            writer=ActionWriter(first.action_space, config.id),
            stop_on_nonfinite=config.on_nonfinite == "stop_run",
        )
    finally:
        before_close()
        seat.run("close", None, first.close)


def _lane_maker(seat: Seat, recipe: LaneRecipe, parent: int) -> Callable[[], gymnasium.Env[Any, Any]]:
    """What Gymnasium calls to make a lane: in our process once for its spaces, then in each child."""

    def make() -> Lane:
        in_child = os.getpid() != parent
        if in_child:
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)  # the parent died between the fork and the call: its signal would never come
        return Lane(seat, recipe, own_process=in_child)

    return make
