"""Buckets: every element in one of them, from the end of the vector, sent off in one order whatever comes first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.parameters import FlatParameters
from common.weights import ParameterManifest
from learner.parallel.buckets import BackwardOrder, Bucket, names_between, plan_buckets, plan_chunks
from learner.parallel.digests import CHUNK_ELEMENTS


def manifest(*sizes: int) -> ParameterManifest:
    """Vectors p0, p1, ... of these sizes."""
    return ParameterManifest.of([(f"p{i}", (size,), "float32") for i, size in enumerate(sizes)])


def cut(buckets: tuple[Bucket, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Start, stop and members."""
    return [(bucket.start, bucket.stop, bucket.parameters) for bucket in buckets]


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_buckets_fill_from_the_end_of_the_vector() -> None:
    """By hand: capacity 5 over sizes 4, 3, 2, 4: the last two are 6, the first two 7."""
    assert cut(plan_buckets(manifest(4, 3, 2, 4), 5)) == [(7, 13, (2, 3)), (0, 7, (0, 1))]


def test_a_parameter_is_never_cut_and_the_rest_is_a_bucket_of_its_own() -> None:
    """One of 100 is one bucket at capacity 5; what is left at the front is sent though it is small."""
    assert cut(plan_buckets(manifest(1, 100, 4), 5)) == [(1, 105, (1, 2)), (0, 1, (0,))]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 120))
def test_every_element_lies_in_one_bucket(sizes: list[int], capacity: int) -> None:
    """From the end without a gap; every bucket but the last is full, and would not be without its first member."""
    buckets = plan_buckets(manifest(*sizes), capacity)
    edge = sum(sizes)
    for index, bucket in enumerate(buckets):
        assert (bucket.index, bucket.stop) == (index, edge)
        assert bucket.stop - bucket.start == sum(sizes[i] for i in bucket.parameters)
        assert bucket.stop - bucket.start - sizes[bucket.parameters[0]] < capacity
        assert bucket.stop - bucket.start >= capacity or bucket is buckets[-1]
        edge = bucket.start
    assert edge == 0
    assert sorted(i for bucket in buckets for i in bucket.parameters) == list(range(len(sizes)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 3 * CHUNK_ELEMENTS), min_size=1, max_size=5), st.integers(0, 100))
def test_chunks_cover_vector_and_tail_and_cross_no_bucket(sizes: list[int], num_tail: int) -> None:
    """Numbered over the whole vector; the tail lies in the last chunks, which are those of bucket 0."""
    buckets = plan_buckets(manifest(*sizes), CHUNK_ELEMENTS)
    chunks = plan_chunks(buckets, num_tail)
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == sum(sizes) + num_tail and chunks[-1].bucket == 0
    assert max(chunk.stop - chunk.start for chunk in chunks) <= CHUNK_ELEMENTS
    for chunk in chunks:
        bucket = buckets[chunk.bucket]
        assert bucket.start <= chunk.start and (chunk.stop <= bucket.stop or chunk.bucket == 0)


def test_the_names_in_a_range_are_those_with_an_element_there() -> None:
    """Edges belong to one side only."""
    entries = manifest(4, 3, 2)
    assert names_between(entries, 0, 4) == ("p0",)
    assert names_between(entries, 3, 5) == ("p0", "p1")
    assert names_between(entries, 4, 9) == ("p1", "p2")
    assert names_between(entries, 9, 30) == ()  # the tail belongs to nobody


# ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Lab:
    """Parameters p0 ... of two elements each, a bucket for each of them (bucket 0 is the last); notes what is sent."""

    def __init__(self, num_parameters: int, *, per_bucket: int = 1, frozen: tuple[int, ...] = ()) -> None:
        model = nn.ParameterDict({f"p{i}": nn.Parameter(torch.ones(2)) for i in range(num_parameters)})
        for i in frozen:
            model[f"p{i}"].requires_grad_(False)
        self.parameters = FlatParameters(model, trainable=True)
        self.sent: list[tuple[int, list[float]]] = []
        self.on_send: Callable[[], None] = lambda: None
        buckets = plan_buckets(self.parameters.manifest, 2 * per_bucket)
        self.order = BackwardOrder(self.parameters, buckets, self._note)

    def _note(self, bucket: Bucket) -> None:
        self.on_send()
        self.sent.append((bucket.index, self.parameters.gradient[bucket.start : bucket.stop].tolist()))

    def loss(self, *used: int) -> Tensor:
        """Whose backward pass reaches `used` in this order: each one's gradient is its number plus 1."""
        parts, total = self.parameters.parts, torch.zeros(())
        for i in reversed(used):
            total = parts[i].sum() * (i + 1) + total * 1.0
        return total


ALL = [(0, [3.0, 3.0]), (1, [2.0, 2.0]), (2, [1.0, 1.0])]


@pytest.mark.parametrize("arrival", [(2, 1, 0), (0, 1, 2), (1, 2, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_buckets_go_off_in_order_whatever_arrives_first(arrival: tuple[int, ...]) -> None:
    """Complete, each once, and all of them within the backward pass."""
    lab = Lab(3)
    lab.order.begin()
    lab.loss(*arrival).backward()
    assert lab.sent == ALL
    lab.order.finish()
    assert lab.sent == ALL


def test_a_bucket_goes_off_while_the_backward_pass_goes_on() -> None:
    """When the last parameter's gradient is there the first one's is not yet: that is the overlap."""
    lab = Lab(2)
    gradients: list[list[float]] = []
    lab.order.begin()
    lab.on_send = lambda: gradients.append(lab.parameters.gradient.tolist())
    lab.loss(1, 0).backward()
    assert gradients == [[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]


def test_a_bucket_waits_for_all_of_its_parameters() -> None:
    """Two in one: neither goes off half."""
    lab = Lab(4, per_bucket=2)
    lab.order.begin()
    lab.loss(3, 1, 0, 2).backward()
    assert lab.sent == [(0, [3.0, 3.0, 4.0, 4.0]), (1, [1.0, 1.0, 2.0, 2.0])]


@pytest.mark.parametrize("used", [(), (0,), (1,), (2,), (0, 2)])
def test_unused_parameters_are_sent_as_zeros_at_the_end(used: tuple[int, ...]) -> None:
    """Also by a rank that made no backward pass at all."""
    lab = Lab(3)
    lab.order.begin()
    if used:
        lab.loss(*used).backward()
    lab.order.finish()
    assert lab.sent == [(2 - i, [i + 1.0] * 2 if i in used else [0.0] * 2) for i in (2, 1, 0)]


def test_frozen_parameters_are_not_waited_for() -> None:
    """Their bucket goes off with the one before it, or with the next."""
    lab = Lab(3, frozen=(1,))
    lab.order.begin()
    lab.loss(2, 0).backward()
    assert lab.sent == [(0, [3.0, 3.0]), (1, [0.0, 0.0]), (2, [1.0, 1.0])]


def test_where_all_is_frozen_everything_is_sent_at_the_end() -> None:
    """No hook ever comes."""
    lab = Lab(2, frozen=(0, 1))
    lab.order.begin()
    lab.order.finish()
    assert lab.sent == [(0, [0.0, 0.0]), (1, [0.0, 0.0])]


def test_a_backward_pass_that_nobody_began_sends_nothing() -> None:
    """Before the first step and after one: a recomputation for an audit."""
    lab = Lab(3)
    lab.loss(2, 1, 0).backward()
    assert lab.sent == []
    lab.parameters.gradient.zero_()
    lab.order.begin()
    lab.loss(2, 1, 0).backward()
    lab.loss(2, 1, 0).backward()
    assert lab.sent == ALL


def test_each_pass_begins_anew() -> None:
    """A pass that used little leaves no count behind."""
    lab = Lab(3)
    for used in ((1,), (2, 1, 0), (0,)):
        lab.parameters.gradient.zero_()
        lab.sent.clear()
        lab.order.begin()
        lab.loss(*used).backward()
        lab.order.finish()
        assert [index for index, _ in lab.sent] == [0, 1, 2]


def test_after_the_close_nothing_is_watched() -> None:
    """A group that has been left sends nothing in the backward passes of the next one."""
    lab = Lab(3)
    lab.order.begin()
    lab.order.close()
    lab.loss(2, 1, 0).backward()
    assert lab.sent == []
