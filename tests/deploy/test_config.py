"""Configuration: layers, errors that name the key, and a round trip through the record."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from deploy.config import RunConfig, merge, parse_config, read_toml, recipe, setting
from learner.schedules import Schedule

ENV = {"id": "CartPole-v1"}

CARTPOLE = {"env": {"id": "CartPole-v1"}}


def parsed(**plain: Any) -> RunConfig:
    return parse_config(CARTPOLE | plain)


# ---- layers --------------------------------------------------------------------------------------------------------


def test_what_is_not_said_is_the_default() -> None:
    """An environment is all that must be given."""
    config = parsed()
    assert config.env.id == "CartPole-v1"
    assert config == dataclasses.replace(RunConfig(env=config.env))


def test_each_layer_lies_over_the_one_before() -> None:
    """Recipe below file below flags, table by table: only what is said again changes."""
    recipe_values = {"steps": 1, "actors": {"num": 2, "lanes": 3}, "ppo": {"epochs": 4}}
    file = {"actors": {"lanes": 5}, "ppo": {"epochs": 6, "clip": 0.3}}
    flags = {"actors": {"rows": 7}, "steps": 8}
    merged = merge(merge(recipe_values, file), flags)
    assert merged == {
        "steps": 8,
        "actors": {"num": 2, "lanes": 5, "rows": 7},
        "ppo": {"epochs": 6, "clip": 0.3},
    }
    assert recipe_values["actors"] == {"num": 2, "lanes": 3}, "layers are not changed"


def test_arguments_of_the_environment_are_replaced_whole() -> None:
    """Half the arguments of one environment and half of another would be nobody's."""
    below = {"env": {"id": "A-v0", "kwargs": {"x": 1, "y": 2}}}
    assert merge(below, {"env": {"kwargs": {"z": 3}}}) == {"env": {"id": "A-v0", "kwargs": {"z": 3}}}


def test_a_table_may_replace_a_value_and_a_value_a_table() -> None:
    """The upper layer decides; whether it is right is for the parser to say."""
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert merge({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        ("seed=3", {"seed": 3}),
        ("ppo.clip=0.3", {"ppo": {"clip": 0.3}}),
        ("optimiser.schedule.final=1e-1", {"optimiser": {"schedule": {"final": 0.1}}}),
        ("metrics.enabled=false", {"metrics": {"enabled": False}}),
        ("net.hidden=[32, 32]", {"net": {"hidden": [32, 32]}}),
        ('optimiser.schedule={kind = "cosine"}', {"optimiser": {"schedule": {"kind": "cosine"}}}),
        ("env.id=CartPole-v1", {"env": {"id": "CartPole-v1"}}),
        ("env.id = ALE/Pong-v5 ", {"env": {"id": "ALE/Pong-v5"}}),
        ('env.id="CartPole-v1"', {"env": {"id": "CartPole-v1"}}),
        ("env.kwargs.map=a=b", {"env": {"kwargs": {"map": "a=b"}}}),
        (" ppo . clip = 0.3", {"ppo": {"clip": 0.3}}),
        ("env.kwargs.name=", {"env": {"kwargs": {"name": ""}}}),
    ],
)
def test_a_setting_is_a_path_and_a_toml_value_or_bare_text(text: str, nested: dict[str, Any]) -> None:
    """What is no TOML value is the text itself, so that ids need no quotes within quotes."""
    assert setting(text) == nested


@pytest.mark.parametrize("text", ["seed", "=3", ".seed=3", "ppo..clip=1", "seed=1\nsteps=2", ""])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    """Never half understood."""
    with pytest.raises(ConfigError, match="--set") as caught:
        setting(text)
    assert caught.value.got == text
    assert "key.path=value" in str(caught.value.allowed)


# ---- recipes and files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(p.name for p in (resources.files("deploy") / "recipes").iterdir()))
def test_every_recipe_that_is_shipped_parses(file: str) -> None:
    """With an environment in place it is a whole configuration."""
    algo, _, name = file.removesuffix(".toml").partition("-")
    found, values = recipe(algo, "NoSuchEnv-v0" if name == "default" else name)
    assert f"{found}.toml" == file
    parse_config(merge(values, CARTPOLE))


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "ppo-CartPole-v1"),
        ("my_module:CartPole-v1", "ppo-CartPole-v1"),
        ("NoSuchEnv-v0", "ppo-default"),
        ("ALE/NoSuchGame-v5", "ppo-default"),
        ("../../etc-v0", "ppo-default"),
    ],
)
def test_the_recipe_of_an_environment_or_the_default(env: str, name: str) -> None:
    """By the bare id, whichever module registers it."""
    assert recipe("ppo", env)[0] == name


def test_an_algorithm_without_a_recipe_is_refused() -> None:
    """It says what there is."""
    with pytest.raises(ConfigError, match="got dqn") as caught:
        recipe("dqn", "CartPole-v1")
    assert caught.value.allowed == "ppo, impala or appo"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"steps = ", "is not TOML"),
        (b"steps = 1\nsteps = 2", "is not TOML"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    """Missing, not TOML (with the line), not text."""
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    """Nested tables as nested values."""
    path = tmp_path / "run.toml"
    path.write_text('steps = 10\n[env]\nid = "A-v0"\n[optimiser.schedule]\nkind = "linear"\n')
    assert read_toml(path) == {"steps": 10, "env": {"id": "A-v0"}, "optimiser": {"schedule": {"kind": "linear"}}}


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "what", "got", "allowed"),
    [
        ({"seed": 1.5}, "'seed'", "1.5", "a valid integer"),
        ({"seed": True}, "'seed'", "True", "a valid integer"),
        ({"seed": "3"}, "'seed'", "'3'", "a valid integer"),
        ({"seed": -1}, "seed", "-1", "0 to 2**63 - 1"),
        ({"seed": 2**63}, "seed", str(2**63), "0 to 2**63 - 1"),
        ({"steps": 0}, "steps", "0", "1 or more"),
        ({"policy_lag": 2}, "policy_lag", "2", "0 or 1"),
        ({"engine": "spark"}, "'engine'", "'spark'", "'ray' or 'inline'"),
        ({"algo": "dqn"}, "'algo'", "'dqn'", "'ppo', 'impala' or 'appo'"),
        ({"actors": 3}, "'actors'", "3", "an object"),
        ({"actors": {"num": 0}}, "actors.num", "0", "1 to 4,096"),
        ({"actors": {"lanes": 10**9}}, "actors.lanes", str(10**9), "1 to 65,536"),
        ({"actors": {"rows": 0}}, "actors.rows", "0", "1 to 1,048,576"),
        ({"actors": {"max_restarts": -1}}, "actors.max_restarts", "-1", "0 or more"),
        ({"checkpoint": {"every": -1}}, "checkpoint.every", "-1", "0 or more updates"),
        ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last", "0", "1 or more"),
        ({"deadlines": {"start_s": 0.0}}, "deadlines.start_s", "0.0", "above 0, finite"),
        ({"deadlines": {"update_s": float("inf")}}, "deadlines.update_s", "inf", "above 0, finite"),
        ({"deadlines": {"collect_s": float("nan")}}, "deadlines.collect_s", "nan", "above 0, finite"),
        ({"stop_at_return": float("nan")}, "stop_at_return", "nan", "a number"),
        ({"net": {"hidden": [64, "a"]}}, "'net.hidden.1'", "'a'", "a valid integer"),
        ({"net": {"hidden": []}}, "net.hidden", "()", "one or more layers of at least 1 unit"),
        ({"learner": {"device": "tpu"}}, "'learner.device'", "'tpu'", "'auto', 'cpu' or 'cuda'"),
        ({"learner": {"ranks": 0}}, "learner.ranks", "0", "1 to 1024"),
        ({"learner": {"max_restarts": -1}}, "learner.max_restarts", "-1", "0 or more"),
        ({"learner": {"sync": {"collective_s": 0.0}}}, "learner.sync.collective_s", "0.0", "above 0, finite"),
        (
            {"optimiser": {"schedule": {"kind": "step"}}},
            "'optimiser.schedule.kind'",
            "'step'",
            "'constant', 'linear', 'cosine' or 'cosine_restarts'",
        ),
        ({"env": {"id": "A-v0", "step_deadline_s": 0}}, "env.step_deadline_s", "0.0", "finite seconds above 0"),
        ({"env": {}}, "env.id", "''", "a Gymnasium id, or 'module:Id'"),
        ({"metrics": {"port": 1.5}}, "'metrics.port'", "1.5", "a valid integer or a valid string"),
        ({"evaluation": {"episodes": 0}}, "evaluation.episodes", "0", "1 or more"),
    ],
)
def test_a_bad_value_is_named_by_its_whole_path(plain: dict[str, Any], what: str, got: str, allowed: str) -> None:
    """Key, what was got, what is allowed; no type is converted silently."""
    with pytest.raises(ConfigError) as caught:
        parsed(**plain)
    assert what in caught.value.what
    assert (caught.value.got, caught.value.allowed) == (got, allowed)


@pytest.mark.parametrize(
    ("plain", "what", "hint"),
    [
        ({"sead": 1}, "'sead'", "did you mean 'seed'?"),
        ({"actors": {"lane": 1}}, "'actors.lane'", "did you mean 'lanes'?"),
        ({"env": {"id": "A-v0", "vectorize": "own"}}, "'env.vectorize'", "did you mean 'vectorise'?"),
        ({"optimiser": {"schedule": {"finel": 0.5}}}, "'optimiser.schedule.finel'", "did you mean 'final'?"),
        ({"learner": {"sync": {"collectives": 1}}}, "'learner.sync.collectives'", "did you mean 'collective_s'?"),
        ({"int": 1}, "'int'", "did you mean 'net'?"),
        ({"zzz": 1, "yyy": 2}, "'zzz' (and 1 more)", ""),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(plain: dict[str, Any], what: str, hint: str) -> None:
    """A misspelt key is never a silent default; the keys that there are stand in the message."""
    with pytest.raises(ConfigError, match="unknown configuration key") as caught:
        parsed(**plain)
    assert what in caught.value.what
    assert caught.value.fix == hint
    assert caught.value.allowed


def test_a_value_that_no_record_could_hold_is_named() -> None:
    """TOML's dates, wherever they hide."""
    from datetime import date

    for plain, path in [
        ({"env": {"id": "A-v0", "kwargs": {"days": [1, date(2024, 1, 2)]}}}, "env.kwargs.days.1"),
        ({"seed": date(2024, 1, 2)}, "seed"),
    ]:
        with pytest.raises(ConfigError, match=rf"'{path}'") as caught:
            parsed(**plain)
        assert caught.value.got == "2024-01-02 (date)"


def test_a_minibatch_larger_than_an_update_is_refused() -> None:
    """The one key is explained by the three others; equal is allowed."""
    actors = {"num": 2, "lanes": 3, "rows": 4}
    assert parsed(actors=actors, ppo={"minibatch": 24}).rows_per_update == 24
    with pytest.raises(ConfigError, match=r"ppo\.minibatch") as caught:
        parsed(actors=actors, ppo={"minibatch": 25})
    assert caught.value.got == "25"
    assert caught.value.allowed == "at most the rows of an update, 24"


def test_a_target_needs_evaluations() -> None:
    """A return that is never measured is never reached."""
    with pytest.raises(ConfigError, match="stop_at_return needs evaluations") as caught:
        parsed(stop_at_return=1, evaluation={"every": 0})
    assert caught.value.got == "evaluation.every = 0"


@pytest.mark.parametrize("name", ["update_s", "snapshot_s"])
def test_a_rank_must_give_the_others_up_before_the_driver_gives_the_rank_up(name: str) -> None:
    """Else the loss of one rank would cost the process of every other; both keys are in the message."""
    sync = {"collective_s": 20.0}
    assert parsed(learner={"sync": sync}, deadlines={name: 20.5}).learner.sync.collective_s == 20.0
    with pytest.raises(ConfigError, match=rf"learner\.sync\.collective_s is not below deadlines\.{name}") as caught:
        parsed(learner={"sync": sync}, deadlines={name: 20})
    assert caught.value.got == "20 s and 20 s"


# ---- what follows from it ------------------------------------------------------------------------------------------


def test_the_record_of_a_configuration_is_the_configuration() -> None:
    """to_plain is JSON, and parse_config reads it back equal, tuples, nested records and arguments included."""
    config = parsed(
        env={"id": "A-v0", "kwargs": {"size": [1, 2], "deep": {"x": None}}},
        seed=2**62,
        stop_at_return=1.5,
        net={"hidden": [8, 9]},
        optimiser={"schedule": {"kind": "linear", "final": 0.5}},
    )
    plain = json.loads(json.dumps(config.to_plain()))
    assert parse_config(plain) == config
    assert parse_config(parsed().to_plain()) == parsed()
    assert config.optimiser.schedule == Schedule(kind="linear", final=0.5)


def test_whole_numbers_are_numbers_where_one_is_meant() -> None:
    """`stop_at_return = 475` needs no point."""
    assert parsed(stop_at_return=475).stop_at_return == 475.0


@pytest.mark.parametrize(("steps", "updates"), [(1, 1), (24, 1), (25, 2), (48, 2), (1000, 42)])
def test_the_horizon_is_the_updates_that_the_steps_need(steps: int, updates: int) -> None:
    """ceil(steps / rows of an update)."""
    config = parsed(steps=steps, actors={"num": 2, "lanes": 3, "rows": 4}, ppo={"minibatch": 4})
    assert config.horizon_updates == updates


def test_the_plan_is_what_the_configuration_says() -> None:
    """Each field of the conductor's plan comes from its key."""
    plan = parsed(
        steps=11,
        policy_lag=0,
        stop_at_return=3.0,
        actors={"num": 5, "max_restarts": 6},
        evaluation={"every": 7, "episodes": 8, "final_episodes": 9},
        checkpoint={"every": 10},
        learner={"ranks": 3, "max_restarts": 12, "sync": {"audit_every": 13}},
    ).plan()
    assert (plan.total_steps, plan.policy_lag, plan.stop_at_return) == (11, 0, 3.0)
    assert (plan.num_actors, plan.max_restarts, plan.checkpoint_every) == (5, 6, 10)
    assert (plan.evaluate_every, plan.episodes, plan.final_episodes) == (7, 8, 9)
    assert (plan.num_ranks, plan.max_rank_restarts, plan.audit_every) == (3, 12, 13)


def test_another_number_of_ranks_changes_nothing_else() -> None:
    """And it is checked like the first."""
    config = parsed(learner={"threads": 2})
    assert config.with_ranks(3) == parsed(learner={"threads": 2, "ranks": 3})
    with pytest.raises(ConfigError, match=r"learner\.ranks"):
        config.with_ranks(0)


def test_algorithms_collect_as_they_are_made_for() -> None:
    """PPO in turn, the others asynchronously, unless the flow says otherwise; sizes follow."""
    config = parse_config({"env": ENV, "actors": {"num": 4, "lanes": 2, "rows": 8}, "ppo": {"minibatch": 8}})
    assert (config.asynchronous, config.fragments_per_update, config.max_lag) == (False, 4, 1)
    config = parse_config({"env": ENV, "algo": "impala", "actors": {"num": 4, "lanes": 2, "rows": 8}})
    assert (config.asynchronous, config.fragments_per_update, config.rows_per_update) == (True, 1, 16)
    assert config.max_lag == 16
    config = parse_config({"env": ENV, "algo": "appo", "appo": {"minibatches": 1}, "flow": {"mode": "sync"}})
    assert (config.asynchronous, config.fragments_per_update) == (False, config.actors.num)
    two = parse_config({"env": ENV, "algo": "impala", "learner": {"ranks": 2}})
    assert two.fragments_per_update == 2


@pytest.mark.parametrize(
    ("plain", "what"),
    [
        ({"net": {"core": "lstm"}}, "ppo cuts updates into single rows"),
        ({"actors": {"num": 2, "most": 4}}, "need asynchronous collection"),
        ({"algo": "impala", "actors": {"num": 2, "least": 3}}, "actors.least, actors.num, actors.most"),
        ({"algo": "impala", "flow": {"max_lag": 0}}, "flow.max_lag"),
    ],
)
def test_what_does_not_fit_together_is_refused(plain: dict[str, Any], what: str) -> None:
    """By name, before anything starts."""
    with pytest.raises(ConfigError, match=re.escape(what)):
        parse_config({"env": ENV, **plain})


@pytest.mark.parametrize(
    ("flow", "frame_bytes", "most"),
    [
        ({}, 0, 32),  # by age: 16 updates of 2 fragments
        ({"max_lag": 1000}, 0, 1024),  # by count
        ({"max_lag": 1000, "most_bytes": 1000}, 100, 10),  # by bytes
        ({"most_bytes": 1}, 100, 2),  # enough for one update in any case
    ],
)
def test_what_may_be_in_flight_is_bounded_three_ways(flow: dict[str, int], frame_bytes: int, most: int) -> None:
    """By count, by age and by bytes."""
    config = parse_config({"env": ENV, "algo": "impala", "flow": {"fragments": 2, **flow}})
    planned = config.plan(frame_bytes=frame_bytes).flow
    assert planned is not None
    assert planned.most_capacity == most
