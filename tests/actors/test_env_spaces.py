"""Spaces as specs, and the mapping between stored index and the environment's action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from actors.env.carried import carried_space, carry, uncarry
from actors.env.spaces import ActionWriter, ObservationReader, PartViolation, random_action
from common.errors import ContractError
from common.specs import BOX_DTYPES, SpaceSpec
from tests.actors.env_driving import lanes_of, transitions
from tests.envs.spaces import DictObsEnv

ACTIONS = [
    spaces.Discrete(3, start=-1),
    spaces.Discrete(1, start=2),
    spaces.Discrete(4, start=np.int64(2)),
    spaces.MultiDiscrete([3, 4], start=[-1, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiDiscrete([3, 4], dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-2, 3, (2,), np.float32),
    spaces.Box(-np.inf, np.inf, (), np.float64),
]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_every_stored_action_is_one_of_the_environment(space: Any) -> None:
    """One lane's action lies in the space and a batch in Gymnasium's batched space, of its dtype; both agree."""
    writer = ActionWriter(space, "X")
    stored = random_action(writer.spec, np.random.default_rng(0), 50)
    assert batch_space(space, 50).contains(writer.batch(stored))
    for row, batched in zip(stored, writer.batch(stored), strict=True):
        one = writer.one(row)
        assert space.contains(one)
        assert np.array_equal(one, batched)
    assert {value.tobytes() for value in stored[:50]} != {stored[0].tobytes()} or space == spaces.Discrete(1, start=2)


def test_index_plus_start_is_the_action_by_hand() -> None:
    """Indices 0, 1, 2 of Discrete(3, start=-1) are -1, 0, 1; MultiDiscrete adds its own start to each."""
    assert ActionWriter(spaces.Discrete(3, start=-1), "X").batch(np.arange(3)).tolist() == [-1, 0, 1]
    multi = ActionWriter(spaces.MultiDiscrete([3, 4], start=[-1, 4]), "X")
    assert multi.one(np.array([2, 0])).tolist() == [1, 4]


@pytest.mark.parametrize("vectorise", ["sync", "async"])
@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_actions_and_observations_that_start_elsewhere(vectorise: str, kind: str) -> None:
    """An environment that insists on -1..1 gets it, and its observation comes back as the stored index."""
    lanes = lanes_of("DiscreteStart", 2, vectorise=vectorise, kwargs={"kind": kind})
    chosen = (lambda lane, n: (n + lane) % 3) if kind == "discrete" else (lambda lane, n: [(n + lane) % 3, n % 4])
    try:
        rows = transitions(lanes, 5, chosen)
    finally:
        lanes.close()
    for lane in rows:
        assert len(lane) == 5
        assert all(row.next_observation["obs"] == row.action for row in lane)
    assert [row.reward for row in rows[0]][:3] == ([-1, 0, 1] if kind == "discrete" else [3, 5, 7])


def test_a_nested_observation_is_flat_and_exact_through_both_kinds_of_lanes() -> None:
    """Every kind of part, float16 and bool included, arrives under its path in its stored dtype."""
    found = []
    for vectorise in ("sync", "async"):
        lanes = lanes_of("DictObs", 2, vectorise=vectorise)
        found.append(transitions(lanes, 8, lambda lane, n: [0.1, -0.1]))
        dtypes = {name: array.dtype.name for name, array in lanes.current.items()}
        lanes.close()
    assert found[0] == found[1]
    second = found[0][0][0].next_observation
    assert second["obs/body/half"] == [1, -1]
    assert second["obs/body/gear"] == 1
    assert second["obs/pair/0"] == [1, 0]
    assert second["obs/image"][0][0] == [10, 10, 10]
    assert dtypes == {
        "obs/image": "uint8",
        "obs/body/half": "float16",
        "obs/body/touch": "bool",
        "obs/body/gear": "int64",
        "obs/pair/0": "int8",
        "obs/pair/1": "float64",
    }


def test_an_action_that_an_environment_keeps_never_changes() -> None:
    """The environment holds its own array: overwriting ours afterwards changes no reward."""
    lanes = lanes_of("DictObs", vectorise="sync")
    lanes.start()
    action = np.full((1, 2), 0.05)
    lanes.step(action)
    action[:] = -0.05
    assert lanes.step(action).reward[0] == pytest.approx(0.0)
    for space in ACTIONS:
        writer = ActionWriter(space, "X")
        stored = random_action(writer.spec, np.random.default_rng(0), 2)
        assert not np.shares_memory(writer.batch(stored), stored)
        assert not np.shares_memory(writer.one(stored[0]), stored)


def test_integer_bounds_are_checked_though_the_dtype_is_right() -> None:
    """9 is the bound; a uint8 of 10 is a broken promise."""
    reader = ObservationReader(spaces.Box(0, 9, (2,), np.uint8), "X")
    assert reader.read(np.array([0, 9], np.uint8))["obs"].tolist() == [0, 9]
    with pytest.raises(PartViolation, match="values from 0 to 10"):
        reader.read(np.array([0, 10], np.uint8))


def test_a_float32_action_never_leaves_a_float64_box() -> None:
    """float32(0.1) lies above 0.1: a saturated action is cut back to the bound."""
    writer = ActionWriter(spaces.Box(-0.1, 0.1, (1,), np.float64), "X")
    assert writer.batch(np.array([[0.1]], np.float32)).tolist() == [[0.1]]


@pytest.mark.parametrize("dtype", sorted(BOX_DTYPES))
def test_every_box_dtype_can_be_carried(dtype: str) -> None:
    """What a lane shows the vector environment holds the extremes of every dtype and comes back bit for bit."""
    kind = np.dtype(dtype).kind
    limits: Any = np.finfo(dtype) if kind == "f" else np.iinfo(dtype) if kind != "b" else None
    values = np.array([0, 1] if limits is None else [limits.min, limits.max], dtype)
    reader = ObservationReader(spaces.Box(0, 1, (2,), np.dtype(dtype)), "X")
    space = carried_space(reader.spec)
    assert space.contains(carry({"obs": values}))
    back = uncarry(np.stack([carry({"obs": values})] * 3), reader.spec)["obs"]
    assert back.dtype == dtype
    assert back.tobytes() == values.tobytes() * 3


@pytest.mark.parametrize(
    ("which", "space", "word"),
    [
        ("observation", spaces.Text(5), "Text"),
        ("observation", spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "'obs/a'"),
        ("observation", spaces.Dict({}), "at least one part"),
        ("observation", spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "once"),
        ("observation", spaces.Box(0, 1, (2,), np.dtype(">f4")), "byte order"),
        ("observation", spaces.Box(0, 1, (2,), np.longdouble), "dtype"),
        ("action", spaces.Box(0, 1, (2,), np.dtype(">f4")), "byte order"),
        ("action", spaces.Box(0, 255, (2,), np.uint8), "Box of a floating dtype"),
        ("action", spaces.Dict({"a": spaces.Discrete(2)}), "MultiBinary"),
        ("action", spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), "MultiBinary"),
    ],
    ids=str,
)
def test_spaces_without_a_stored_form_are_refused_by_name(which: str, space: Any, word: str) -> None:
    """The error names the environment, the space, and what is supported."""
    with pytest.raises(ContractError, match="environment 'X'") as caught:
        (ObservationReader if which == "observation" else ActionWriter)(space, "X")
    assert word in str(caught.value)


def test_a_box_with_nan_bounds_is_refused() -> None:
    """Bounds changed to NaN after construction, which Gymnasium itself would let pass."""
    space = spaces.Box(0, 1, (2,), np.float32)
    space.low = np.array([np.nan, 0], np.float32)
    with pytest.raises(ContractError, match="NaN among its bounds"):
        ActionWriter(space, "X")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda o: o.pop("image"), "obs"),
        (lambda o: o.update(extra=1), "obs"),
        (lambda o: o.update(body=None), "obs/body"),
        (lambda o: o.update(pair=(o["pair"][0],)), "obs/pair"),
        (lambda o: o["body"].update(gear=8), "obs/body/gear"),
        (lambda o: o.update(image=np.full((2, 2, 3), 300)), "obs/image"),
    ],
)
def test_a_nested_observation_of_another_structure_names_the_part(change: Any, part: str) -> None:
    """Missing and extra keys, a short tuple, None, a value out of range: the path says where."""
    env = DictObsEnv()
    observation, _ = env.reset()
    change(observation)
    with pytest.raises(PartViolation) as caught:
        ObservationReader(env.observation_space, "X").read(observation)
    assert caught.value.part == part


def test_specs_of_known_environments() -> None:
    """Shapes, bounds, choices and the order of parts."""
    space = DictObsEnv().observation_space
    reader = ObservationReader(space, "X")
    outermost = [name.split("/")[1] for name, _ in reader.spec]
    assert list(dict.fromkeys(outermost)) == list(space.spaces)
    assert reader.spec["obs/image"].is_image()
    assert isinstance(reader.spec, SpaceSpec)
    pendulum = ActionWriter(gymnasium.make("Pendulum-v1").action_space, "X").spec
    assert (pendulum.low, pendulum.high, pendulum.shape) == ((-2.0,), (2.0,), (1,))
