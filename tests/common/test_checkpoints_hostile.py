"""Checkpoints of strangers: whoever can write every file, digests included, gets an error and nothing else.

In each test the digests are right, so that what is tried is what lies behind them. No code runs, no file outside is
read or written, no more memory is taken than the files hold, and nothing waits for ever.
"""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import manifest as manifests
from common.checkpoints import CheckpointStore
from common.errors import CheckpointError, WireError
from common.manifest import MANIFEST, TENSORS
from common.wire import pack_plain
from deploy.saved import read_saved

NAME = "update-000000030"
DOCUMENT = "actors.msgpack"


def planted(directory: Path, tensors: bytes, **documents: bytes) -> CheckpointStore:
    """A store whose only checkpoint is made of these files, with a manifest that vouches for them."""
    path = directory / NAME
    path.mkdir(parents=True, exist_ok=True)
    parts = {TENSORS: tensors, **{f"{name}.msgpack": data for name, data in documents.items()}}
    for name, data in parts.items():
        (path / name).write_bytes(data)
    (path / MANIFEST).write_bytes(manifests.describe(update=30, score=None, meta={}, parts=parts).encoded)
    return CheckpointStore(directory)


def safetensors_file(header: object, data: bytes = b"") -> bytes:
    """By hand: eight bytes of the header's length, the header as JSON, the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(store: CheckpointStore) -> str:
    with pytest.raises(CheckpointError) as caught:
        store.load(NAME)
    return str(caught.value)


# ---- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100_000_001) + b"{}",
        safetensors_file(b"{" * 100_000),
        safetensors_file(b"\xff\xfe{}"),
        safetensors_file({"w": tensor("F32", [2**62, 4], 0, 0)}),
        safetensors_file({"w": tensor("F32", [2**40], 0, 2**42)}, b"\x00" * 16),
        safetensors_file({"w": tensor("F32", [4], 0, 16), "v": tensor("F32", [4], 8, 24)}, b"\x00" * 24),
        safetensors_file({"w": tensor("F32", [4], 16, 0)}, b"\x00" * 16),
        safetensors_file({"w": tensor("F32", [5], 0, 16)}, b"\x00" * 16),
        safetensors_file({"w": tensor("F32", [4], 0, 16)}, b"\x00" * 17),
        safetensors_file({"w": tensor("O8", [2], 0, 16)}, b"\x00" * 16),
        safetensors_file({"w": [1, 2, 3]}),
        safetensors_file([1, 2]),
    ],
    ids=[
        "empty",
        "no header",
        "header of 8 EiB",
        "header above the limit",
        "nesting",
        "no UTF-8",
        "shape whose size overflows",
        "4 TiB of data in 16 bytes",
        "tensors that overlap",
        "end before begin",
        "shape and bytes that differ",
        "bytes of nobody",
        "objects",
        "no description",
        "no table",
    ],
)
def test_a_bomb_in_the_tensors_is_an_error(tmp_path: Path, data: bytes) -> None:
    """Lengths, shapes and offsets are held against the file before memory is taken."""
    store = planted(tmp_path, data)
    tracemalloc.start()
    try:
        assert "safetensors" in refused(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=8))
def test_whatever_a_header_says_there_is_a_value_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    """Bytes of a good file changed at will: it loads as arrays, or raises ours; never anything else."""
    good = bytearray(safetensors_file({"w": tensor("F32", [4], 0, 16), "n": tensor("I64", [1], 16, 24)}, b"\x01" * 24))
    for place, value in flips:
        good[place % len(good)] = value
    store = planted(tmp_path_factory.mktemp("store"), bytes(good))
    try:
        loaded = store.load(NAME)
    except CheckpointError:
        return
    assert all(isinstance(array, np.ndarray) and array.dtype.hasobject is False for array in loaded.tensors.values())


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "a/b", "..", "\x00", "x" * 100_000])
def test_the_name_of_a_tensor_is_no_path(tmp_path: Path, name: str) -> None:
    """It is a key of a mapping: nothing is opened by it."""
    before = sorted(tmp_path.rglob("*"))
    store = planted(tmp_path / "store", safetensors_file({name: tensor("U8", [1], 0, 1)}, b"\x07"))
    assert store.load(NAME).tensors[name].tolist() == [7]
    assert sorted(path for path in tmp_path.rglob("*") if (tmp_path / "store") not in (path, *path.parents)) == before


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [TENSORS, MANIFEST])
def test_a_pipe_holds_nobody_up(tmp_path: Path, file: str) -> None:
    """Reading one would wait for a writer that never comes."""
    store = planted(tmp_path, safetensors_file({}))
    (tmp_path / NAME / file).unlink()
    os.mkfifo(tmp_path / NAME / file)
    assert "not a regular file" in refused(store)


def test_a_directory_or_a_device_is_no_file(tmp_path: Path) -> None:
    """/dev/zero has no end."""
    store = planted(tmp_path, safetensors_file({}))
    (tmp_path / NAME / TENSORS).unlink()
    (tmp_path / NAME / TENSORS).symlink_to("/dev/zero")
    assert "not a regular file" in refused(store)


def test_no_more_is_read_than_the_manifest_tells(tmp_path: Path) -> None:
    """A file of 2 TiB that takes no place on the disk, where 10 bytes were promised."""
    store = planted(tmp_path, safetensors_file({}))
    os.truncate(tmp_path / NAME / TENSORS, 2 * 2**40)
    assert "cut short or grown; got more bytes; allowed: 10" in refused(store)


def test_what_no_memory_can_hold_is_an_error(tmp_path: Path) -> None:
    """The manifest vouches for 2**60 bytes, and the file has them: told, and nothing else happens."""
    store = planted(tmp_path, safetensors_file({}))
    path = tmp_path / NAME
    os.truncate(path / TENSORS, 2**43)
    body = json.loads((path / MANIFEST).read_bytes())["manifest"]
    body["files"][TENSORS]["bytes"] = 2**60
    (path / MANIFEST).write_bytes(manifests._encode(body)[0])
    assert "does not fit this machine's memory" in refused(store)


# ---- manifest and documents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"manifest":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"manifest":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"manifest":{"schema":' + b"9" * 10_000 + b"}}",
        b'{"manifest":{"schema":1e999}}',
        b'{"manifest":{"schema":NaN}}',
        b'{"manifest":null}',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"",
    ],
    ids=["lists", "objects", "a number of 10,000 digits", "no double", "NaN", "null", "surrogate", "mark", "empty"],
)
def test_a_bomb_in_the_manifest_is_an_error(tmp_path: Path, text: bytes) -> None:
    """Depth, digits and encodings that break careless readers."""
    store = planted(tmp_path, safetensors_file({}))
    (tmp_path / NAME / MANIFEST).write_bytes(text)
    assert "is damaged or no manifest" in refused(store)


def test_a_manifest_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """1 TiB of nothing."""
    store = planted(tmp_path, safetensors_file({}))
    os.truncate(tmp_path / NAME / MANIFEST, 2**40)
    tracemalloc.start()
    try:
        assert "manifest" in refused(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**30


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300))
def test_documents_of_a_stranger_are_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """The run behind a checkpoint whose documents are noise is not read, and no other exception comes of it."""
    assert_not_read(planted(tmp_path_factory.mktemp("store"), safetensors_file({}), conductor=data, learner=data))


KEYS = ("schema", "update", "term", "version", "env_steps", "accounts", "seats", "frames", "evaluation", "final")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.just(3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=10),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(conductor=st.fixed_dictionaries({"schema": st.just(3)}, optional=dict.fromkeys(KEYS[1:], VALUES)) | VALUES)
def test_documents_with_other_values_than_a_run_has_are_an_error(
    tmp_path_factory: pytest.TempPathFactory, conductor: object
) -> None:
    """Well-formed, of the right schema, and of whatever type and shape a stranger likes."""
    plain = pack_plain(conductor)
    assert_not_read(planted(tmp_path_factory.mktemp("store"), safetensors_file({}), conductor=plain, learner=plain))


def assert_not_read(store: CheckpointStore) -> None:
    loaded = store.load(NAME)
    with pytest.raises((CheckpointError, WireError)):
        read_saved(loaded)
