"""One lane can be seen: only it is told to render, and its pictures are checked like everything else it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.env.config import EnvConfig
from actors.env.lanes import Lanes
from actors.env.make import make_lanes
from actors.env.rendering import Rendering, RenderMode, check_renders
from common.errors import ConfigError, ContractError, EnvironmentFault, TruestepError
from common.rng import Role, Streams
from tests.actors.env_driving import test_id
from tests.envs.drawn import CONSTRUCTED, WINDOWS


def seen(name: str, *, lane: int = 1, mode: RenderMode = "rgb_array", **config: Any) -> Lanes:
    """Three lanes, one of which is to be seen."""
    return make_lanes(
        EnvConfig(id=test_id(name), **config),
        3,
        streams=Streams(7),
        role=Role.EVALUATOR,
        index=0,
        incarnation=1,
        who="test",
        rendering=Rendering(mode=mode, lane=lane),
    )


def stepped(lanes: Lanes, ticks: int) -> None:
    for _ in range(ticks):
        lanes.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("vectorise", ["sync", "async"])
def test_a_picture_is_of_the_moment(vectorise: Any) -> None:
    """After the reset and after each tick; an array of its own, which the next one leaves alone."""
    lanes = seen("Drawn", vectorise=vectorise)
    lanes.start()
    first = lanes.render(1)
    stepped(lanes, 2)
    assert (lanes.render(1) == 2).all() and (first == 0).all() and first.shape == (2, 3, 3)
    lanes.close()


def test_only_the_lane_that_is_seen_is_told_to_render() -> None:
    """So that one window opens; the environment whose spaces are read first is not told either."""
    CONSTRUCTED.clear()
    seen("Drawn", lane=2, mode="human", vectorise="sync").close()
    assert CONSTRUCTED == [None, None, None, "human"]


def test_a_window_shows_the_lane_as_it_is_stepped() -> None:
    """The environment draws by itself: nothing is asked of it."""
    WINDOWS.clear()
    lanes = seen("Drawn", mode="human", vectorise="sync")
    lanes.start()
    stepped(lanes, 2)
    lanes.close()
    assert WINDOWS == [0, 1, 2]


def test_rendering_changes_nothing_else() -> None:
    """The same observations and ends, tick by tick, as without."""
    plain = make_lanes(
        EnvConfig(id=test_id("Drawn"), vectorise="sync"),
        3,
        streams=Streams(7),
        role=Role.EVALUATOR,
        index=0,
        incarnation=1,
        who="test",
    )
    drawn = seen("Drawn", vectorise="sync")
    assert (plain.start()["obs"] == drawn.start()["obs"]).all()
    for _ in range(20):
        a, b = (lanes.step(np.zeros(3, np.int64)) for lanes in (plain, drawn))
        drawn.render(1)
        assert (a.observation["obs"] == b.observation["obs"]).all() and (a.end == b.end).all()
    plain.close()
    drawn.close()


@pytest.mark.parametrize(("name", "after_three"), [("DrawnVector", 13), ("DrawnVectorSameStep", 10)])
def test_a_lane_of_an_environment_that_vectorises_itself_is_seen(name: str, after_three: int) -> None:
    """Its own picture out of all; in same-step mode the end is behind it already."""
    lanes = seen(name)
    lanes.start()
    stepped(lanes, 2)
    assert (lanes.render(1) == 12).all()
    stepped(lanes, 1)
    assert (lanes.render(1) == after_three).all()
    lanes.close()


@pytest.mark.parametrize("vectorise", ["sync", "async"])
@pytest.mark.parametrize(
    ("paints", "got"),
    [("floats", "float64 [2, 3, 3]"), ("grey", "uint8 [2, 3]"), ("four", "uint8 [2, 3, 4]"), ("nothing", "NoneType")],
)
def test_what_is_no_picture_is_named(paints: str, got: str, vectorise: Any) -> None:
    """Environment, lane and tick, what came, and what a picture is."""
    lanes = seen("Drawn", vectorise=vectorise, kwargs={"paints": paints})
    lanes.start()
    with pytest.raises(ContractError, match=r"Drawn-v0', test, lane 1, tick 0: what render returned") as caught:
        lanes.render(1)
    lanes.close()
    assert (caught.value.got, caught.value.allowed) == (got, "uint8 [height, width, 3]")


def test_what_render_raises_has_its_traceback() -> None:
    """Like what a step raises."""
    lanes = seen("Drawn", vectorise="sync", kwargs={"paints": "no such thing"})
    lanes.start()
    with pytest.raises(EnvironmentFault, match="render raised KeyError") as caught:
        lanes.render(1)
    lanes.close()
    assert "drawn.py" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        ("Ending", "human", "replaying without rendering"),
        ("Ending", "rgb_array", "replaying without rendering"),
        ("DrawnVector", "human", "--frames DIR"),
    ],
)
def test_what_cannot_render_is_refused_before_it_plays(name: str, mode: RenderMode, words: str) -> None:
    """By what it declares, with what can be had instead."""
    with pytest.raises(ConfigError, match=f"cannot render {mode}") as caught:
        check_renders(EnvConfig(id=test_id(name)), mode)
    assert words in (caught.value.allowed or "")


@pytest.mark.parametrize(("name", "mode"), [("Drawn", "human"), ("Drawn", "rgb_array"), ("DrawnVector", "rgb_array")])
def test_what_can_render_passes(name: str, mode: RenderMode) -> None:
    """And is not told to while it is asked."""
    CONSTRUCTED.clear()
    check_renders(EnvConfig(id=test_id(name)), mode)
    assert set(CONSTRUCTED) <= {None}


def test_a_mode_that_is_declared_and_not_taken_is_an_error_of_construction() -> None:
    """The environment's own word."""
    with pytest.raises(TruestepError, match="it takes no render mode"):
        seen("Drawn", vectorise="sync", kwargs={"obeys": False})
