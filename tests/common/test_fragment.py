"""Fragments: the frame's arrays, what sender and receiver both check, golden bytes of schema 1."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.errors import WireError
from common.fragment import (
    End,
    FragmentBuffer,
    FragmentHeader,
    FragmentLayout,
    FragmentSummary,
    decode_fragment,
)
from common.frames import FrameBuffer
from common.specs import ArraySpec, SpaceSpec
from tests.golden import examples

DISCRETE = ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(4,), start=(0,))
LAYOUT = FragmentLayout(
    num_rows=3,
    num_lanes=2,
    observation=SpaceSpec(parts=(("obs", ArraySpec(kind="box", shape=(4,), dtype="float32")),)),
    action=DISCRETE,
)
HEADER = replace(examples.HEADER, num_rows=3, num_lanes=2, num_valid=4)


def filled() -> FragmentBuffer:
    """Lane 0: a step that terminates, the final row, a step. Lane 1: two steps and a broken row."""
    buffer = FragmentBuffer(LAYOUT)
    buffer.observation["obs"][...] = np.arange(32).reshape(4, 2, 4)
    buffer.action[...] = [[0, 1], [2, 3], [0, 1]]
    buffer.valid[...] = [[1, 1], [0, 1], [1, 0]]
    buffer.end[...] = [[End.TERMINATED, End.CONTINUES], [End.CONTINUES, End.CONTINUES], [End.CONTINUES, End.BROKEN]]
    return buffer


def test_end_codes_are_the_wire_contract() -> None:
    """Append only, never reused."""
    assert {code.name: int(code) for code in End} == {"CONTINUES": 0, "TERMINATED": 1, "TRUNCATED": 2, "BROKEN": 3}


def test_the_frame_holds_the_canonical_rows() -> None:
    """Observation and value have one row more; parts keep their dtypes; Box actions are float32."""
    rows = {entry.name: (entry.dtype, entry.shape) for entry in examples.LAYOUT.frame_layout().entries}
    assert rows == {
        "obs/camera": ("|u1", (3, 1, 2, 2)),
        "obs/speed": ("<f8", (3, 1)),
        "action": ("<f4", (2, 1, 2)),
        "reward": ("<f4", (2, 1)),
        "end": ("|u1", (2, 1)),
        "valid": ("|u1", (2, 1)),
        "log_prob": ("<f4", (2, 1)),
        "value": ("<f4", (3, 1)),
    }


def test_the_state_before_row_0_is_the_last_array_where_there_is_one() -> None:
    """[B, S] float32; a feed-forward policy's frame is what it was before there were others, without that array."""
    *before, state = replace(LAYOUT, state_size=6).frame_layout().entries
    assert tuple(before) == LAYOUT.frame_layout().entries
    assert (state.name, state.dtype, state.shape) == ("core_state", "<f4", (2, 6))


def test_the_state_is_written_and_read() -> None:
    """As every other array: a read-only view of the document. Without memory it has no elements."""
    layout = replace(LAYOUT, state_size=3)
    buffer = FragmentBuffer(layout)
    buffer.core_state[...] = [[1, 2, 3], [4, 5, 6]]
    document = buffer.seal(replace(HEADER, num_valid=0))
    fragment = decode_fragment(document, layout)
    assert fragment.core_state.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert np.shares_memory(fragment.core_state, document) and not fragment.core_state.flags.writeable
    for without in (filled(), decode_fragment(filled().seal(HEADER), LAYOUT)):
        assert (without.core_state.shape, without.core_state.dtype) == ((2, 0), np.float32)


def test_a_negative_state_size_is_refused() -> None:
    """It names the field."""
    with pytest.raises(WireError, match="state_size; got -1; allowed: 0 or more"):
        FragmentBuffer(replace(LAYOUT, state_size=-1))


@pytest.mark.parametrize(
    ("action", "dtype", "shape"),
    [
        (DISCRETE, "<i8", (3, 2)),
        (ArraySpec(kind="multi_binary", shape=(5,), dtype="int8"), "|i1", (3, 2, 5)),
        (ArraySpec(kind="box", shape=(2,), dtype="uint8"), "<f4", (3, 2, 2)),
    ],
)
def test_actions_are_stored_as_the_policy_chooses_them(action: ArraySpec, dtype: str, shape: Any) -> None:
    """Choices in the spec's stored dtype; every Box as float32, before squashing or clipping."""
    entry = next(entry for entry in replace(LAYOUT, action=action).frame_layout().entries if entry.name == "action")
    assert (entry.dtype, entry.shape) == (dtype, shape)


def test_a_fragment_without_rows_or_lanes_is_refused() -> None:
    """Nothing to learn from is a mistake of the configuration."""
    for layout in (replace(LAYOUT, num_rows=0), replace(LAYOUT, num_lanes=0)):
        with pytest.raises(WireError, match="allowed: 1 or more"):
            FragmentBuffer(layout)


def test_what_was_written_is_what_is_read_in_the_same_memory() -> None:
    """Every array by name, header included, as read-only views of the document."""
    buffer = filled()
    document = buffer.seal(HEADER)
    fragment = decode_fragment(document, LAYOUT)
    assert fragment.header == HEADER
    assert document.nbytes == buffer.num_bytes
    for name in ("action", "reward", "end", "valid", "log_prob", "value"):
        got, sent = getattr(fragment, name), getattr(buffer, name)
        assert np.array_equal(got, sent) and np.shares_memory(got, document) and not got.flags.writeable
    assert list(fragment.observation) == ["obs"]
    assert np.array_equal(fragment.observation["obs"], buffer.observation["obs"])
    assert np.shares_memory(fragment.observation["obs"], document)


def test_a_buffer_is_reused() -> None:
    """The next seal overwrites the document of the last, so a digest tells them apart."""
    buffer = filled()
    first = decode_fragment(buffer.seal(HEADER).copy(), LAYOUT)
    buffer.reward[0, 0] = 5.0
    second = decode_fragment(buffer.seal(replace(HEADER, sequence=8)), LAYOUT)
    assert (first.header.sequence, second.header.sequence) == (7, 8)
    assert (first.reward[0, 0], second.reward[0, 0]) == (0.0, 5.0)
    assert first.digest != second.digest


def set_end(buffer: FragmentBuffer) -> None:
    buffer.end[0, 0] = 4


def set_valid(buffer: FragmentBuffer) -> None:
    buffer.valid[0, 0] = 2


def set_broken(buffer: FragmentBuffer) -> None:
    buffer.end[0, 0] = End.BROKEN


def nothing(buffer: FragmentBuffer) -> None:
    pass


WRONG: list[tuple[Callable[[FragmentBuffer], None], FragmentHeader, str]] = [
    (set_end, HEADER, r"end; got 4; allowed: \[0, 1, 2, 3\]"),
    (set_valid, HEADER, "valid; got 2; allowed: 0 or 1"),
    (set_broken, HEADER, "a broken row is valid"),
    (nothing, replace(HEADER, num_valid=5), "num_valid of its header; got 5; allowed: 4, its valid rows"),
    (nothing, replace(HEADER, num_rows=4), r"rows and lanes of its header; got \(4, 2\); allowed: \(3, 2\)"),
    (nothing, replace(HEADER, num_lanes=1), r"rows and lanes of its header; got \(3, 1\); allowed: \(3, 2\)"),
]


@pytest.mark.parametrize(("change", "header", "message"), WRONG)
def test_sender_and_receiver_refuse_the_same_fragments(
    change: Callable[[FragmentBuffer], None], header: FragmentHeader, message: str
) -> None:
    """Codes and counts are judged at `seal`; a foreign sender's are judged at `decode_fragment`, in the same words."""
    buffer = filled()
    change(buffer)
    who = "fragment 7 of actor 3, incarnation 1: "
    with pytest.raises(WireError, match=who + message):
        buffer.seal(header)

    frame = FrameBuffer(LAYOUT.frame_layout(), "fragment")
    for name in ("end", "valid"):
        frame.arrays[name][...] = getattr(buffer, name)
    with pytest.raises(WireError, match=who + message):
        decode_fragment(frame.seal(header.to_plain()), LAYOUT)


OTHER_LAYOUTS = [
    (replace(LAYOUT, num_rows=2), r"array obs; got obs <f4 \[4, 2, 4\] at 0; allowed: obs <f4 \[3, 2, 4\] at 0"),
    (replace(LAYOUT, action=replace(DISCRETE, shape=(1,))), r"array action; got action <i8 \[3, 2\]"),
    (
        replace(LAYOUT, observation=SpaceSpec(parts=(("obs", ArraySpec(kind="box", shape=(4,), dtype="int32")),))),
        "array obs; got obs <f4 .* allowed: obs <i4",
    ),
    (
        replace(LAYOUT, observation=SpaceSpec(parts=(("obs/a", ArraySpec(kind="box", shape=(4,), dtype="float32")),))),
        "array obs/a; got obs <f4",
    ),
    (replace(LAYOUT, state_size=2), "number of arrays; got 7; allowed: 8"),
]


@pytest.mark.parametrize(("layout", "message"), OTHER_LAYOUTS)
def test_another_layout_is_refused_by_the_array_that_differs(layout: FragmentLayout, message: str) -> None:
    """Name, dtype, shape or place."""
    with pytest.raises(WireError, match=message):
        decode_fragment(filled().seal(HEADER), layout)


@pytest.mark.parametrize(("field", "value"), [("version", "40"), ("run", 1), ("num_valid", 4.0), ("actor", True)])
def test_a_header_of_other_types_is_refused_by_field(field: str, value: object) -> None:
    """A digest proves that the bytes arrived, not that they make sense."""
    with pytest.raises(WireError, match=f"fragment header: {field}; got"):
        FragmentHeader.from_plain(HEADER.to_plain() | {field: value})


def test_a_header_without_a_field_is_refused() -> None:
    """Fields of schema 1 have no defaults; later ones will."""
    plain = HEADER.to_plain()
    del plain["lease"]
    with pytest.raises(WireError, match="fragment header: missing lease"):
        FragmentHeader.from_plain(plain)


def test_summaries_cross_processes_whole() -> None:
    """A summary is small and pickles to an equal value: it travels beside the frame."""
    summary = FragmentSummary(
        actor=3, lease="a", incarnation=1, sequence=7, term=2, version=40, update=41, num_valid=4, num_voided=2,
        num_bytes=4096, episode_returns=(1.5, -2.0), episode_lengths=(10, 20), start_ns=1, end_ns=2, policy_ns=3,
        env_ns=4, gc_pause_ns=(5,),
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(summary)) == summary
    assert summary.metrics_port == 0


def test_the_golden_fragment_decodes() -> None:
    """Whatever schema we write, schema 1 is read, value by value."""
    fragment = decode_fragment((examples.HERE / "fragment_v1.msgpack").read_bytes(), examples.LAYOUT)
    assert fragment.header == examples.HEADER
    assert fragment.observation["obs/camera"].reshape(-1).tolist() == list(range(12))
    assert fragment.observation["obs/speed"][:, 0].tolist() == [0.25, -1.5, 8.0]
    assert fragment.action[:, 0].tolist() == [[0.5, -0.5], [0.0, 0.0]]
    assert fragment.reward[:, 0].tolist() == [1.0, 0.0]
    assert fragment.end[:, 0].tolist() == [End.TERMINATED, End.CONTINUES]
    assert fragment.valid[:, 0].tolist() == [1, 0]
    assert fragment.log_prob[:, 0].tolist() == [-0.75, 0.0]
    assert fragment.value[:, 0].tolist() == [2.0, 4.0, 6.0]
