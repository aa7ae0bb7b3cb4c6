"""The values behind the golden files of schema 1.

    python -m tests.golden.examples        writes the files that are missing; never replaces one

A new schema gets new files beside the old ones, and the old ones go on being decoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.fragment import FragmentBuffer, FragmentHeader, FragmentLayout
from common.specs import ArraySpec, SpaceSpec
from common.weights import ParameterManifest, WeightsHeader, encode_weights
from common.wire import BFloat16Bits, pack_plain

HERE = Path(__file__).parent

LAYOUT = FragmentLayout(
    num_rows=2,
    num_lanes=1,
    observation=SpaceSpec(
        parts=(
            ("obs/camera", ArraySpec(kind="box", shape=(2, 2), dtype="uint8")),
            ("obs/speed", ArraySpec(kind="box", shape=(), dtype="float64")),
        )
    ),
    action=ArraySpec(kind="box", shape=(2,), dtype="float64"),
)
HEADER = FragmentHeader(
    run="golden",
    actor=3,
    lease="a1b2",
    incarnation=1,
    sequence=7,
    term=2,
    version=40,
    update=41,
    num_rows=2,
    num_lanes=1,
    num_valid=1,
    start_ns=1_000,
    end_ns=2_500,
    clock_id="manual",
)
MANIFEST = ParameterManifest.of([("body.weight", (2, 2), "float32"), ("body.bias", (2,), "float32")])
WEIGHTS_HEADER = WeightsHeader(
    run="golden", term=2, version=40, update=41, fingerprint=MANIFEST.fingerprint(), extra={"count": 12.0}
)


def plain_value() -> dict[str, Any]:
    """One of everything that a plain document may hold."""
    return {
        "none": None,
        "bool": [True, False],
        "int": [0, -(2**63), 2**64 - 1],
        "float": [0.5, -0.0, float("inf")],
        "text": "naïve",
        "bytes": b"\x00\xff",
        "tuple": (1, (), [2]),
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.float64(1.5),
        "bfloat16": BFloat16Bits(bits=np.array([0x3F80, 0x4000], dtype=np.uint16)),
    }


def fragment_buffer() -> FragmentBuffer:
    """Two rows of one lane: a step that ends the episode, then its final observation."""
    buffer = FragmentBuffer(LAYOUT)
    buffer.observation["obs/camera"].reshape(-1)[:] = range(12)
    buffer.observation["obs/speed"][:, 0] = [0.25, -1.5, 8.0]
    buffer.action[0, 0] = [0.5, -0.5]
    buffer.reward[0, 0] = 1.0
    buffer.end[0, 0] = 1
    buffer.valid[0, 0] = 1
    buffer.log_prob[0, 0] = -0.75
    buffer.value[:, 0] = [2.0, 4.0, 6.0]
    return buffer


def flat_weights() -> NDArray[np.float32]:
    """Six parameters."""
    return np.array([1, 2, 3, 4, -0.5, 0.5], dtype=np.float32)


def documents() -> dict[str, bytes]:
    """What this code writes today, by file name."""
    return {
        "plain_v1.msgpack": pack_plain(plain_value()),
        "fragment_v1.msgpack": fragment_buffer().seal(HEADER).tobytes(),
        "weights_v1.msgpack": encode_weights(MANIFEST, flat_weights(), WEIGHTS_HEADER).tobytes(),
    }


def main() -> None:
    """Write what is missing."""
    for name, data in documents().items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(data)


if __name__ == "__main__":
    main()
