"""Weight bundles: manifest, fingerprint, one flat vector, and who is told when networks differ."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import WireError
from common.frames import FrameBuffer, FrameLayout
from common.weights import ParameterManifest, WeightsHeader, decode_weights, encode_weights, parameter_digest
from common.wire import pack_plain
from tests.golden import examples

MANIFEST, HEADER = examples.MANIFEST, examples.WEIGHTS_HEADER


def test_parameters_lie_one_after_the_other() -> None:
    """Offsets and sizes count elements; a scalar takes one, an empty parameter none."""
    manifest = ParameterManifest.of([("a", (2, 3), "float32"), ("b", (), "float32"), ("c", (0, 4), "float32")])
    assert [(entry.offset, entry.size) for entry in manifest.entries] == [(0, 6), (6, 1), (7, 0)]
    assert manifest.num_elements == 7


def test_views_are_the_parameters_in_the_vector() -> None:
    """No copy: what is written to a view is written to the vector."""
    flat = np.arange(6, dtype=np.float32)
    views = MANIFEST.views(flat)
    assert views["body.weight"].tolist() == [[0, 1], [2, 3]] and views["body.bias"].tolist() == [4, 5]
    views["body.bias"][0] = 9
    assert flat[4] == 9


def test_the_fingerprint_is_fixed() -> None:
    """SHA-256 over `[["a", [2], "float32"]]` in MessagePack, by hand."""
    manifest = ParameterManifest.of([("a", (2,), "float32")])
    packed = bytes.fromhex("91 93 a161 9102 a7") + b"float32"
    assert manifest.fingerprint() == hashlib.sha256(packed).hexdigest()


@pytest.mark.parametrize(
    "parameters",
    [
        [("body.weight", (2, 2), "float32")],
        [("body.bias", (2,), "float32"), ("body.weight", (2, 2), "float32")],
        [("body.weight", (4,), "float32"), ("body.bias", (2,), "float32")],
        [("body.weights", (2, 2), "float32"), ("body.bias", (2,), "float32")],
    ],
)
def test_the_fingerprint_sees_names_shapes_and_order(parameters: list[tuple[str, tuple[int, ...], str]]) -> None:
    """Another network of as many elements is another network."""
    assert ParameterManifest.of(parameters).fingerprint() != MANIFEST.fingerprint()


def test_manifests_have_a_plain_form() -> None:
    """For checkpoints and for the record."""
    assert MANIFEST.to_plain() == [["body.weight", [2, 2], "float32"], ["body.bias", [2], "float32"]]
    assert ParameterManifest.from_plain(MANIFEST.to_plain()) == MANIFEST


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "manifest; got dict"),
        ([["a", [2]]], "entry; got"),
        ([["a", ["2"], "float32"]], "entry; got"),
        ([["a", [-2], "float32"]], "parameter a; got shape"),
        ([["a", [2], "float32"], ["a", [2], "float32"]], "each name once"),
        ([["a", [2], "float64"]], "parameter a: dtype; got float64; allowed: float32"),
    ],
)
def test_other_manifests_are_refused(plain: object, message: str) -> None:
    """All parameters are float32, each named once; the error names the entry."""
    with pytest.raises(WireError, match=message):
        ParameterManifest.from_plain(plain)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(width=32), min_size=6, max_size=6))
def test_a_bundle_returns_bit_for_bit(values: list[float]) -> None:
    """Header, extra and vector; the vector is a read-only view of the document."""
    flat = np.array(values, dtype=np.float32)
    document = encode_weights(MANIFEST, flat, HEADER)
    weights = decode_weights(document, MANIFEST)
    assert weights.header == HEADER
    assert weights.flat.tobytes() == flat.tobytes()
    assert np.shares_memory(weights.flat, document) and not weights.flat.flags.writeable


def test_bundles_live_on() -> None:
    """Each has a buffer of its own: the next one changes nothing in it."""
    flat = examples.flat_weights()
    first = encode_weights(MANIFEST, flat, HEADER)
    flat[:] = 0
    encode_weights(MANIFEST, flat, HEADER)
    assert decode_weights(first, MANIFEST).flat.tolist() == examples.flat_weights().tolist()


def test_extra_may_be_large() -> None:
    """Statistics of a normaliser of images travel in the header; arrays come back writable copies."""
    extra = {"mean": np.arange(84 * 84 * 4, dtype=np.float64)}
    document = encode_weights(MANIFEST, examples.flat_weights(), replace(HEADER, extra=extra))
    assert np.array_equal(decode_weights(document, MANIFEST).header.extra["mean"], extra["mean"])


def test_extra_of_the_largest_size_that_is_sent_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields may fill the limit of a document; the table beside them does not count against it."""
    fields = HEADER.to_plain() | {"extra": {"blob": bytes(2000)}}
    monkeypatch.setattr("common.frames.MAX_PLAIN_BYTES", len(pack_plain(fields)))
    document = encode_weights(MANIFEST, examples.flat_weights(), WeightsHeader.from_plain(fields))
    assert decode_weights(document, MANIFEST).header.extra == {"blob": bytes(2000)}


@pytest.mark.parametrize(
    "flat", [np.zeros(5, np.float32), np.zeros(6), np.zeros((2, 3), np.float32), np.zeros(6, ">f4")]
)
def test_another_vector_is_refused(flat: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    """Wrong length, dtype or rank never becomes a bundle."""
    with pytest.raises(WireError, match=r"weights 40: flat vector; got .*; allowed: float32 \(6,\)"):
        encode_weights(MANIFEST, flat, HEADER)


def test_other_networks_are_told_apart_by_both_fingerprints() -> None:
    """An actor that built another network refuses the bundle and names both; so does the encoder."""
    other = ParameterManifest.of([("head.weight", (6,), "float32")])
    message = f"weights 40 of run 'golden': manifest; got {MANIFEST.fingerprint()}; allowed: {other.fingerprint()}"
    with pytest.raises(WireError, match=message):
        decode_weights(encode_weights(MANIFEST, examples.flat_weights(), HEADER), other)
    with pytest.raises(WireError, match=message):
        encode_weights(other, examples.flat_weights(), HEADER)


def test_a_true_fingerprint_on_other_arrays_is_refused() -> None:
    """The header's word is not enough: the vector must have the manifest's length."""
    frame = FrameBuffer(FrameLayout.of({"parameters": ("float32", (7,))}), "weights")
    with pytest.raises(WireError, match="weights 40: arrays; got"):
        decode_weights(frame.seal(HEADER.to_plain()), MANIFEST)


def test_headers_refuse_other_types_and_default_extra() -> None:
    """`extra` may be absent; nothing else."""
    plain = HEADER.to_plain()
    del plain["extra"]
    assert WeightsHeader.from_plain(plain) == replace(HEADER, extra={})
    with pytest.raises(WireError, match="weights header: version; got str '40'; allowed: int"):
        WeightsHeader.from_plain(plain | {"version": "40"})


def test_the_digest_for_the_record_is_sha256_of_the_bytes() -> None:
    """Known bytes, known digest; -0.0 is not 0.0, and the layout in memory does not matter."""
    flat = np.array([1.0, -0.5], dtype=np.float32)
    assert parameter_digest(flat) == hashlib.sha256(bytes.fromhex("0000803f000000bf")).hexdigest()
    assert parameter_digest(np.zeros(1, np.float32)) != parameter_digest(-np.zeros(1, np.float32))
    assert parameter_digest(np.array([1.0, 9.0, -0.5], dtype=np.float32)[::2]) == parameter_digest(flat)


def test_the_golden_bundle_decodes() -> None:
    """Whatever schema we write, schema 1 is read."""
    weights = decode_weights((examples.HERE / "weights_v1.msgpack").read_bytes(), MANIFEST)
    assert weights.header == HEADER
    assert weights.flat.tolist() == [1, 2, 3, 4, -0.5, 0.5]
