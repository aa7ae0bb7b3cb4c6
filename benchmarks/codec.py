"""The frame codec against plain msgpack on one fragment of stacked Atari frames (58 MB): encode, verify and decode.

    python -m benchmarks.codec [--rounds N]

Ours: `seal` of a frame that the rollout has already filled in place (header and xxh3-64 over every byte), then
`decode_frame` (verification included). The baseline sends the same arrays the usual
way: `msgpack.packb` of a dict of `tobytes()` with dtype and shape, then `unpackb` and `np.frombuffer`; no checksum.
A second baseline adds the same checksum to it, as a fair reading of what verification costs.
Rounds are interleaved, so that a neighbour's noise falls on all; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import xxhash
from numpy.typing import NDArray

from common.clock import Clock, MonotonicClock
from common.fragment import FragmentLayout
from common.frames import FrameBuffer, decode_frame
from common.specs import ArraySpec, SpaceSpec

TARGET_RATIO = 10.0
LAYOUT = FragmentLayout(
    num_rows=128,
    num_lanes=16,
    observation=SpaceSpec(parts=(("obs", ArraySpec(kind="box", shape=(84, 84, 4), dtype="uint8")),)),
    action=ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(18,), start=(0,)),
)
HEADER = {"run": "benchmark", "actor": 0, "sequence": 0, "version": 1}


def filled_frame() -> FrameBuffer:
    """A frame of random bytes: nothing here depends on the values."""
    frame = FrameBuffer(LAYOUT.frame_layout(), "fragment")
    generator = np.random.default_rng(0)
    for array in frame.arrays.values():
        array.view(np.uint8)[...] = generator.integers(0, 256, array.view(np.uint8).shape, dtype=np.uint8)
    return frame


def truestep_round(frame: FrameBuffer) -> dict[str, NDArray[Any]]:
    """Seal, verify, decode."""
    return decode_frame(frame.seal(HEADER), kind="fragment").arrays


def msgpack_round(arrays: dict[str, NDArray[Any]], *, checksum: bool) -> dict[str, NDArray[Any]]:
    """Copy into bytes, pack, unpack, view."""
    table = {name: [array.dtype.str, list(array.shape), array.tobytes()] for name, array in arrays.items()}
    document = msgpack.packb({"header": HEADER, "arrays": table})
    if checksum and xxhash.xxh3_64_intdigest(document) != xxhash.xxh3_64_intdigest(document):
        raise AssertionError("a checksum changed between two readings")
    decoded = msgpack.unpackb(document)["arrays"]
    return {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in decoded.items()}


def timed_ns(clock: Clock, run: Callable[[], dict[str, NDArray[Any]]]) -> int:
    """Nanoseconds of one round."""
    start = clock.now_ns()
    run()
    return clock.now_ns() - start


def measure(rounds: int) -> dict[str, Any]:
    """Medians over interleaved rounds; the first round of each road warms up and is not counted."""
    frame, clock = filled_frame(), MonotonicClock()
    roads: dict[str, Callable[[], dict[str, NDArray[Any]]]] = {
        "truestep": lambda: truestep_round(frame),
        "msgpack": lambda: msgpack_round(frame.arrays, checksum=False),
        "msgpack_checksum": lambda: msgpack_round(frame.arrays, checksum=True),
    }
    for run in roads.values():
        decoded = run()
        assert all(np.array_equal(decoded[name].view("u1"), array.view("u1")) for name, array in frame.arrays.items())
    times: dict[str, list[int]] = {name: [] for name in roads}
    for _ in range(rounds):
        for name, run in roads.items():
            times[name].append(timed_ns(clock, run))
    median_ms = {name: statistics.median(values) / 1e6 for name, values in times.items()}
    return result(median_ms, rounds, frame.num_bytes)


def result(median_ms: dict[str, float], rounds: int, frame_bytes: int) -> dict[str, Any]:
    """The line that the acceptance check reads."""
    ratio = median_ms["msgpack"] / median_ms["truestep"]
    return {
        "benchmark": "codec",
        "frame_bytes": frame_bytes,
        "rounds": rounds,
        "median_ms": {name: round(value, 3) for name, value in median_ms.items()},
        "ratio": round(ratio, 2),
        "ratio_with_checksum": round(median_ms["msgpack_checksum"] / median_ms["truestep"], 2),
        "target_ratio": TARGET_RATIO,
        "met": ratio >= TARGET_RATIO,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The frame codec against plain msgpack.")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, at least 1 (default 15)")
    rounds: int = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds: got {rounds}, allowed: 1 or more")
    print("RESULT " + json.dumps(measure(rounds)))


if __name__ == "__main__":
    main()
