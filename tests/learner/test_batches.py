"""Fragments to batches: the valid rows and nothing else, in order, in stored form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from common.fragment import End, Fragment
from learner.batches import Batch, BatchBuilder
from learner.returns import generalised_advantages
from tests.support import box, discrete, fragment, layout, multi_discrete

CPU = torch.device("cpu")


def gae(item: Fragment) -> NDArray[np.float64]:
    """Advantages as PPO takes them."""
    return generalised_advantages(item.reward, item.value, item.end, item.valid, discount=0.9, lambda_=0.8)


def bits(batch: Batch) -> dict[str, bytes]:
    """Every tensor of a batch, bit by bit."""
    named = {"obs": batch.observation["obs"]} | {
        name: getattr(batch, name) for name in ("action", "log_prob", "value", "advantage", "target")
    }
    return {name: tensor.numpy().tobytes() for name, tensor in named.items()}


# Two episodes of two transitions in one lane: a truncated one, its final observation, then one that goes on.
ROWS: dict[str, Any] = {
    "obs": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]],
    "action": [1, 0, 0, 1, 1],
    "reward": [1.0, 2.0, 0.0, 3.0, 4.0],
    "log_prob": [-0.1, -0.2, 0.0, -0.3, -0.4],
    "value": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "end": [End.CONTINUES, End.TRUNCATED, End.CONTINUES, End.CONTINUES, End.CONTINUES],
    "valid": [1, 1, 0, 1, 1],
}


def part(rows: slice) -> dict[str, Any]:
    """Some rows of the above as arrays of their own, with the observation and value after them."""
    after = slice(rows.start, rows.stop + 1)
    return {name: values[after if name in ("obs", "value") else rows] for name, values in ROWS.items()}


def test_a_fragment_with_invalid_rows_equals_its_valid_rows_alone() -> None:
    """C02: the same batch, bit for bit, as from two fragments that hold one episode each and no filler."""
    whole = BatchBuilder(layout(5), CPU).build([fragment(layout(5), **ROWS)], gae)
    episodes = [fragment(layout(2), **part(slice(0, 2))), fragment(layout(2), **part(slice(3, 5)))]
    apart = BatchBuilder(layout(2), CPU).build(episodes, gae)
    assert len(whole) == 4
    assert bits(whole) == bits(apart)
    assert whole.observation["obs"].tolist() == [[0, 1], [2, 3], [6, 7], [8, 9]]


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e38])
def test_nothing_of_an_invalid_row_reaches_the_batch(garbage: float) -> None:
    """C02: reward, log-probability and action of the filler row change no bit."""
    clean = bits(BatchBuilder(layout(5), CPU).build([fragment(layout(5), **ROWS)], gae))
    dirty = {name: list(values) for name, values in ROWS.items()}
    dirty["reward"][2] = dirty["log_prob"][2] = garbage
    dirty["action"][2] = 99
    assert bits(BatchBuilder(layout(5), CPU).build([fragment(layout(5), **dirty)], gae)) == clean


def test_rows_come_in_the_order_of_fragments_rows_and_lanes() -> None:
    """Time-major inside a fragment, lane by lane inside a row."""
    shape = layout(2, 2, obs=box(dtype="int64"))
    first = fragment(shape, obs=[[0, 1], [2, 3], [90, 91]], valid=[[1, 0], [1, 1]])
    second = fragment(shape, obs=[[4, 5], [6, 7], [92, 93]])
    batch = BatchBuilder(shape, CPU).build([first, second], gae)
    assert batch.observation["obs"].tolist() == [0, 2, 3, 4, 5, 6, 7]


def test_the_target_is_advantage_plus_value() -> None:
    """Added in float64 and rounded once: 1 + 2^-24 (1 + 2^-25) is nearer to 1 + 2^-23 than to 1."""
    advantage = np.full((5, 1), 2.0**-24 * (1 + 2.0**-25))
    item = fragment(layout(5), **(ROWS | {"value": [1.0] * 6}))
    batch = BatchBuilder(layout(5), CPU).build([item], lambda _: advantage)
    assert batch.target.tolist() == [1 + 2.0**-23] * 4
    assert batch.advantage.tolist() == [2.0**-24] * 4


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (box(3, dtype="uint8"), torch.uint8),
        (box(2, 2, dtype="float64"), torch.float64),
        (box(dtype="uint16"), torch.uint16),
        (box(2, dtype="uint32"), torch.uint32),
        (box(dtype="uint64"), torch.uint64),
        (box(2, dtype="bool"), torch.bool),
        (discrete(4), torch.int64),
    ],
)
def test_observations_keep_their_stored_form(spec: Any, dtype: torch.dtype) -> None:
    """uint8 images stay uint8 until the network: a quarter of the memory."""
    shape = layout(3, 2, obs=spec)
    batch = BatchBuilder(shape, CPU).build([fragment(shape)], gae)
    part_of_rows = batch.rows(torch.tensor([4, 1]))
    for got, count in ((batch, 6), (part_of_rows, 2)):
        assert (got.observation["obs"].dtype, got.observation["obs"].shape) == (dtype, (count, *spec.shape))


@pytest.mark.parametrize(
    ("action", "dtype"), [(discrete(2), torch.int64), (multi_discrete(2, 3), torch.int64), (box(2), torch.float32)]
)
def test_actions_come_in_stored_form(action: Any, dtype: torch.dtype) -> None:
    """As the head's log-probability takes them."""
    shape = layout(3, action=action)
    batch = BatchBuilder(shape, CPU).build([fragment(shape)], gae)
    assert (batch.action.dtype, batch.action.shape) == (dtype, (3, *action.shape))


def test_storage_is_used_again_without_showing_the_last_batch() -> None:
    """A large batch, a small one, a larger one: each holds its own rows only."""
    builder = BatchBuilder(layout(5), CPU)
    expected = bits(BatchBuilder(layout(5), CPU).build([fragment(layout(5), **ROWS)], gae))
    large = [fragment(layout(5), reward=[9.0] * 5)] * 3
    for fragments in (large, [fragment(layout(5), **ROWS)], large * 2, [fragment(layout(5), **ROWS)]):
        batch = builder.build(fragments, gae)
        assert len(batch) == sum(item.header.num_valid for item in fragments)
    assert bits(batch) == expected


def test_selected_rows_are_copies() -> None:
    """A minibatch outlives the storage that it was cut from."""
    builder = BatchBuilder(layout(5), CPU)
    rows = builder.build([fragment(layout(5), **ROWS)], gae).rows(torch.tensor([0, 1, 2, 3]))
    before = bits(rows)
    builder.build([fragment(layout(5), reward=[9.0] * 5, log_prob=[-9.0] * 5)], gae)
    assert bits(rows) == before


@pytest.mark.parametrize("fragments", [[], [fragment(layout(5), valid=[0] * 5)]])
def test_no_valid_row_is_no_batch(fragments: list[Fragment]) -> None:
    """A rank whose share has none says so; it asks for no advantages."""

    def never(_: Fragment) -> NDArray[np.float64]:
        raise AssertionError

    assert BatchBuilder(layout(5), CPU).build(fragments, never) is None
