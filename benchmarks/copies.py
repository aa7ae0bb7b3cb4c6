"""How often an observation is copied between the environment and the network that learns from it.

    python -m benchmarks.copies [--lanes 32] [--rows 16]

A run on ALE/Pong-v5 over Ray in which one observation is followed. The environment is wrapped: right after a step it
looks for the new observation in the actor's memory (what it finds belongs to the environment), again when truestep
comes back with the next action, and again when the next fragment begins. The network is one that looks for its own
input in the rank's memory while it learns. Nothing inside truestep is touched or told.

    environment ──copy 1──► frame ──copy 2──► object store ──no copy──► network

Memory that was freed still counts as long as nothing was written over it; so that a buffer which was used again cannot
hide, Python's and NumPy's own allocations are watched too: within a fragment they must stay below half the observations
of a tick, between two fragments below half a fragment.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from torch import Tensor, nn

from benchmarks.memory_search import Place, places_of
from benchmarks.peers.impala_setting import PONG, PONG_THREADS
from benchmarks.report import mark, result_line, table
from common.specs import ArraySpec, SpaceSpec
from deploy.config import parse_config
from deploy.session import train

MOST_PAYLOADS = 2.0
LARGEST_BUFFER = 0.5  # of what is copied in one go: no allocation of Python's or NumPy's may be as large
FOLDER = "TRUESTEP_COPIES"  # where the processes of the run write what they found; nothing is watched without it
FOLLOWED_FRAGMENT = 2  # the first ones warm up
WATCHED = "truestep-bench/WatchedPong-v0"


class Watched(VectorWrapper):
    """An environment that follows one of its observations through the actor's memory.

    Args:
        vector: the environment.
        rows: ticks of a fragment.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any], rows: int) -> None:
        super().__init__(vector)
        self._tick = -1
        self._followed = (FOLLOWED_FRAGMENT + 1) * rows - 2  # its observation is the last that the fragment acts on
        self._pattern = b""
        self._before: set[int] = set()
        self._found: dict[str, Any] = {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._tick += 1
        if self._tick == self._followed + 1:
            self._note("in_fragment")
            self._trace()
        elif self._tick == self._followed + 2:
            self._note("between_fragments")
            write(self._found)
        outcome = self.env.step(actions)
        if self._tick == self._followed and os.environ.get(FOLDER):
            self._begin(outcome[0])
        return outcome

    def _begin(self, observation: Any) -> None:
        self._pattern = observation[-1].tobytes()
        self._before = {place.address for place in places_of(self._pattern)}
        self._found["tick_bytes"] = observation.nbytes
        self._trace()

    def _trace(self) -> None:
        tracemalloc.start()
        tracemalloc.reset_peak()  # whoever traced already has seen the search
        self._used = tracemalloc.get_traced_memory()[0]

    def _note(self, when: str) -> None:
        if not self._pattern:
            return
        peak = tracemalloc.get_traced_memory()[1] - self._used
        tracemalloc.stop()
        new = [place for place in places_of(self._pattern) if place.address not in self._before]
        self._found[when] = {"peak_bytes": peak, **counted(new)}


class Watching(nn.Module):
    """A network that looks for its own input while it learns; what it computes does not matter."""

    def __init__(self, observation: SpaceSpec, action: ArraySpec) -> None:
        super().__init__()
        (self._name, spec), *_ = observation
        self._width = min(64, spec.size)
        self.policy = nn.Linear(self._width, action.nvec[0])
        self.value = nn.Linear(self._width, 1)
        self._passes = 0

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        given = observation[self._name]
        if torch.is_grad_enabled() and os.environ.get(FOLDER):
            self._passes += 1
            if self._passes == FOLLOWED_FRAGMENT:
                self._look(given)
        first = given.flatten(1)[:, : self._width].float()
        return self.policy(first), self.value(first)[:, 0]

    def _look(self, given: Tensor) -> None:
        row = given[len(given) // 2]
        places = places_of(row.numpy().tobytes())
        read = next((place for place in places if place.address == row.data_ptr()), None)
        write({"learning": {"reads_the_store": read is not None and read.shared, **counted(places)}})


def counted(places: list[Place]) -> dict[str, int]:
    """How many lie in the object store, and how many elsewhere."""
    stored = sum(place.shared for place in places)
    return {"store": stored, "elsewhere": len(places) - stored}


def write(found: dict[str, Any]) -> None:
    """For the process that began the run."""
    folder = Path(os.environ[FOLDER])
    (folder / f"{os.getpid()}-{'-'.join(found)}.json").write_text(json.dumps(found))


def watched_pong(num_envs: int, rows: int, **kwargs: Any) -> Watched:
    """The vector entry point of WATCHED."""
    make_vec: Any = gymnasium.make_vec
    vector = make_vec(f"ale_py:{PONG}", num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return Watched(vector, rows)


def watching(observation: SpaceSpec, action: ArraySpec, _: Any) -> nn.Module:
    """The `net.factory`."""
    return Watching(observation, action)


gymnasium.register(WATCHED, vector_entry_point="benchmarks.copies:watched_pong")


@contextmanager
def folder_for_findings() -> Iterator[Path]:
    """Where processes that are started meanwhile write."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER]


def follow(lanes: int, rows: int) -> dict[str, Any]:
    """Train long enough for one observation to be followed to its end; returns what both processes found."""
    config = parse_config(
        {
            "env": {
                "id": f"benchmarks.copies:{WATCHED}",
                "vectorise": "own",
                "kwargs": {"rows": rows, "num_threads": PONG_THREADS},
            },
            "algo": "impala",
            "steps": (FOLLOWED_FRAGMENT + 3) * lanes * rows,
            "actors": {"num": 1, "lanes": lanes, "rows": rows},
            "flow": {"fragments": 1},
            "learner": {"device": "cpu"},
            "net": {"factory": "benchmarks.copies:watching"},
            "evaluation": {"every": 0, "episodes": 1, "final_episodes": 1, "lanes": 1, "max_ticks": 1},
        }
    )
    with folder_for_findings() as folder, tempfile.TemporaryDirectory() as out:
        outcome = train(config, out=out, run="copies")
        if outcome.error is not None:
            raise SystemExit(f"truestep: {outcome.error}")
        return {key: value for file in folder.iterdir() for key, value in json.loads(file.read_text()).items()}


def judge(found: dict[str, Any], rows: int) -> dict[str, Any]:
    """Payloads copied, and whether that is all: a fragment's payload is its T + 1 observations of every lane."""
    inside, between, learning = found["in_fragment"], found["between_fragments"], found["learning"]
    to_frame = inside["elsewhere"]
    to_store = between["store"] + between["elsewhere"] - to_frame
    to_network = learning["elsewhere"]
    most = LARGEST_BUFFER * found["tick_bytes"]
    hidden = inside["peak_bytes"] >= most or between["peak_bytes"] >= rows * most
    payloads = to_frame + to_store + to_network
    return {
        "environment_to_frame": to_frame,
        "frame_to_store": to_store,
        "store_to_network": to_network,
        "payloads": payloads,
        "hidden_buffers": hidden,
        "promises": {f"at most {MOST_PAYLOADS:g} payloads": payloads <= MOST_PAYLOADS and not hidden},
    }


def words(judged: dict[str, Any]) -> str:
    """A table and its verdict."""
    legs = ("environment_to_frame", "frame_to_store", "store_to_network", "payloads")
    rows = [[leg.replace("_", " "), str(judged[leg])] for leg in legs]
    lines = [table(["from, to", "copies of the payload"], rows)]
    return "\n".join(lines + [f"{mark(kept)}  {promise}" for promise, kept in judged["promises"].items()])


def main() -> None:
    parser = argparse.ArgumentParser(description="Copies of an observation between environment and network.")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--rows", type=int, default=16)
    asked = parser.parse_args()
    if asked.lanes < 1 or asked.rows < 2:
        parser.error(f"got --lanes {asked.lanes} --rows {asked.rows}; allowed: 1 or more, 2 or more")
    found = follow(asked.lanes, asked.rows)
    judged = judge(found, asked.rows)
    print(words(judged))
    print(result_line({"benchmark": "copies", "lanes": asked.lanes, "rows": asked.rows, "found": found, **judged}))


if __name__ == "__main__":
    main()
