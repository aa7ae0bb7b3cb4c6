"""Copies are counted where they happen: an observation is followed through a real actor, with and without a waste."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from actors.env.lanes import Tick
from actors.env.make import read_specs
from actors.env.vector_lanes import VectorLanes
from actors.evaluate import EvaluationConfig
from actors.worker import ActorConfig, ActorWorker, CollectOrder
from benchmarks.copies import FOLDER, FOLLOWED_FRAGMENT, Watched, Watching, judge, words
from common.clock import MonotonicClock
from common.fragment import FragmentLayout
from common.nets import NetConfig
from common.specs import ArraySpec, SpaceSpec
from tests.actors.test_policy import weights_document

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/mem")

ROWS, LANES, SIDE = 4, 3, 40
NOISE = "truestep-test/Noise-v0"


class Noise(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Fresh random images in every tick; episodes never end."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.draws = np.random.default_rng(5)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._images(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        nothing = np.zeros(self.num_envs, bool)
        return self._images(), np.zeros(self.num_envs), nothing, nothing, {}

    def _images(self) -> NDArray[np.uint8]:
        return self.draws.integers(0, 256, (self.num_envs, 1, SIDE, SIDE), dtype=np.uint8)


def make_noise(num_envs: int, rows: int) -> Watched:
    """Entry point."""
    return Watched(Noise(num_envs), rows)


@pytest.fixture(autouse=True)
def registered() -> Any:
    """The environment, for the time of a test."""
    gymnasium.register(NOISE, vector_entry_point=make_noise, kwargs={"rows": ROWS})
    yield
    del gymnasium.registry[NOISE]


def followed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """What the environment finds in the memory of an actor that makes one fragment more than is followed."""
    monkeypatch.setenv(FOLDER, str(folder))
    env = EnvConfig(id=NOISE, vectorise="own")
    observation, action = read_specs(env)
    net = NetConfig(hidden=(8,))
    layout = FragmentLayout(num_rows=ROWS, num_lanes=LANES, observation=observation, action=action)
    config = ActorConfig(run="r", seed=0, actor=0, incarnation=0, lease="l", env=env, net=net, layout=layout)
    worker = ActorWorker(config, EvaluationConfig(), MonotonicClock())
    worker.start()
    document = weights_document(observation, action, net=net)
    for update in range(FOLLOWED_FRAGMENT + 2):
        worker.collect(CollectOrder(update=update, term=0, version=1), document)
    worker.close()
    assert not tracemalloc.is_tracing(), "what is watched must not slow down what comes after it"
    (file,) = folder.iterdir()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_an_actor_copies_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Into the frame, and nowhere else; no buffer of a tick's size is made on the way."""
    found = followed(monkeypatch, tmp_path)
    assert found["tick_bytes"] == LANES * SIDE * SIDE
    assert found["in_fragment"]["elsewhere"] == 1 and found["in_fragment"]["store"] == 0


def test_a_copy_that_is_kept_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An adapter that copies what the environment gave, and keeps it: two."""
    step, kept = VectorLanes.step, []

    def wasteful(lanes: VectorLanes, action: NDArray[Any]) -> Tick:
        tick = step(lanes, action)
        kept.append({name: part.copy() for name, part in tick.observation.items()})
        return tick

    monkeypatch.setattr(VectorLanes, "step", wasteful)
    found = followed(monkeypatch, tmp_path)
    assert found["in_fragment"]["elsewhere"] == 2
    assert found["in_fragment"]["peak_bytes"] >= found["tick_bytes"]


def test_a_network_that_reads_a_copy_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its input lies in no object store here; the original and what it reads are two places."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    image = ArraySpec(kind="box", shape=(1, SIDE, SIDE), dtype="uint8", low=(0.0,), high=(255.0,))
    action = ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(2,), start=(0,))
    network = Watching(SpaceSpec(parts=(("obs", image),)), action)
    original = torch.from_numpy(np.random.default_rng(6).integers(0, 256, (5, 1, SIDE, SIDE), dtype=np.uint8))
    copy = original.clone()
    for _ in range(FOLLOWED_FRAGMENT):
        network({"obs": copy})
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["learning"] == {"reads_the_store": False, "store": 0, "elsewhere": 2}


def findings(**changed: Any) -> dict[str, Any]:
    """Of a run without waste, or with what is `changed`."""
    found: dict[str, Any] = {
        "tick_bytes": 1000,
        "in_fragment": {"peak_bytes": 10, "store": 0, "elsewhere": 1},
        "between_fragments": {"peak_bytes": 10, "store": 1, "elsewhere": 1},
        "learning": {"reads_the_store": True, "store": 1, "elsewhere": 0},
    }
    return found | changed


def kept(found: dict[str, Any]) -> bool:
    """The promise."""
    (answer,) = judge(found, rows=16)["promises"].values()
    return bool(answer)


def test_two_payloads_are_what_is_promised() -> None:
    """One into the frame, one into the store, none to the network."""
    judged = judge(findings(), rows=16)
    legs = [judged[leg] for leg in ("environment_to_frame", "frame_to_store", "store_to_network", "payloads")]
    assert legs == [1, 1, 0, 2] and kept(findings())
    assert "| payloads" in words(judged)


@pytest.mark.parametrize(
    "waste",
    [
        {"in_fragment": {"peak_bytes": 10, "store": 0, "elsewhere": 2}},
        {"in_fragment": {"peak_bytes": 500, "store": 0, "elsewhere": 1}},
        {"between_fragments": {"peak_bytes": 10, "store": 1, "elsewhere": 2}},
        {"between_fragments": {"peak_bytes": 8000, "store": 1, "elsewhere": 1}},
        {"learning": {"reads_the_store": False, "store": 1, "elsewhere": 1}},
    ],
)
def test_waste_anywhere_breaks_the_promise(waste: dict[str, Any]) -> None:
    """A further copy on any leg, or a buffer of half a tick inside a fragment, or of half a fragment between two."""
    broken = findings(**waste)
    if waste.get("in_fragment", {}).get("elsewhere") == 2:
        broken["between_fragments"] = {"peak_bytes": 10, "store": 1, "elsewhere": 2}
    assert not kept(broken)
