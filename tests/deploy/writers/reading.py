"""What writers wrote, read back by the means of those it is written for, and what the registry says it should be."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from common.clock import MonotonicClock, wait_until
from common.runs import RunRegistry
from deploy.writers.scalars import rows

Curves = dict[str, list[tuple[int, float]]]  # by name: step and value
BLOCK, BLOCK_HEAD, FILE_HEAD = 32_768, 7, 7  # bytes; of LevelDB's log format, which W&B's files are in
FULL, LAST = 1, 4


def board(directory: Path) -> Curves:
    """The scalars that TensorBoard shows of a directory of event files."""
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def texts(directory: Path) -> list[tuple[int, str]]:
    """The configuration as TensorBoard shows it: step and text."""
    events = EventAccumulator(str(directory)).Reload()
    shown = events.Tensors("config/text_summary")
    return [(each.step, each.tensor_proto.string_val[0].decode()) for each in shown]


def history(directory: Path) -> list[dict[str, float]]:
    """The rows of the W&B run that was written offline below a directory, in order, without W&B's own columns."""
    found = []
    for record in wandb_records(directory):
        if record.WhichOneof("record_type") == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found.append({name: value for name, value in row.items() if not name.startswith("_")})
    return found


def wandb_records(directory: Path) -> list[Any]:
    """Every record of that run; its file is written out by a process of W&B's, a moment after the run was closed."""
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    assert wait_until(lambda: _is_whole(file), clock=MonotonicClock(), seconds=20.0), f"{file} has no end"
    return list(_records(file))


def _is_whole(file: Path) -> bool:
    return any(record.WhichOneof("record_type") == "exit" for record in _records(file))


def _records(file: Path) -> Iterator[Any]:
    data, at, parts = file.read_bytes(), FILE_HEAD, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < BLOCK_HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + BLOCK_HEAD])
        parts += data[at + BLOCK_HEAD : at + BLOCK_HEAD + length]
        at += BLOCK_HEAD + length
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def recorded(out: Path, run: str) -> Curves:
    """What the registry has, by the names that writers use, as float32."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        lines = list(rows(registry.updates(run), registry.evaluations(run)))
    curves: Curves = defaultdict(list)
    for step, values in lines:
        for name, value in values.items():
            curves[name].append((step, float(np.float32(value))))
    return dict(curves)


def same(one: Curves, other: Curves) -> bool:
    """Point by point, NaN being equal to NaN."""
    return one.keys() == other.keys() and all(
        np.array_equal(np.asarray(one[name]), np.asarray(other[name]), equal_nan=True) for name in one
    )


def digest(out: Path, run: str) -> str:
    """Of the parameters that a run ended with."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return registry.run(run).parameter_digest
