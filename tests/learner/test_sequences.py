"""Fragments as sequences: views of the frame, whole or by lanes, in which nothing of an unused row counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.fragment import End, Fragment
from common.nets import NetConfig
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.lanes import LanePlan, count_rows, minibatch_of
from learner.sequences import Sequences, sequences_of, unrolled
from tests.learner.sequence_lab import CPU, Lab, accepted, random_fragment, with_core
from tests.support import box, layout

GRU = NetConfig(hidden=(8,), core="gru", core_size=4)
SHAPE = layout(5, 4)


def sequences(item: Fragment, lag: int = 0, exponent: float = 0.0) -> Sequences:
    """On the CPU."""
    return sequences_of(accepted(item, lag), CPU, exponent)


def inside(view: Any, item: np.ndarray[Any, Any]) -> bool:
    """Whether a tensor or array lies in the memory of `item`."""
    return np.shares_memory(view.numpy() if isinstance(view, torch.Tensor) else view, item)


def test_a_fragment_without_invalid_rows_is_not_copied() -> None:
    """Tensors and arrays are the frame's own memory, of whole fragments and of some of their lanes."""
    item = random_fragment(with_core(SHAPE, GRU))
    for cut in (sequences(item), sequences(item).lanes(1, 3)):
        assert inside(cut.observation["obs"], item.observation["obs"])
        assert inside(cut.core_state, item.core_state)
        for name in ("action", "log_prob", "reward", "end", "valid"):
            assert inside(getattr(cut, name), getattr(item, name)), name


def test_observations_are_not_copied_where_invalid_rows_are_final_observations() -> None:
    """They are bootstrapped from, so they are sound."""
    item = random_fragment(SHAPE, num_ends=3)
    assert not item.valid.all()
    assert inside(sequences(item).observation["obs"], item.observation["obs"])


def test_lanes_are_those_of_the_fragment() -> None:
    """Of every column, the recurrent state included."""
    item = random_fragment(with_core(SHAPE, GRU), num_ends=4)
    cut = sequences(item).lanes(1, 3)
    assert cut.num_lanes == 2
    np.testing.assert_array_equal(cut.observation["obs"], item.observation["obs"][:, 1:3])
    np.testing.assert_array_equal(cut.core_state, item.core_state[1:3])
    np.testing.assert_array_equal(cut.used, item.valid[:, 1:3])
    np.testing.assert_array_equal(cut.valid_before, np.concatenate([[[1, 1]], item.valid[:, 1:3]]))
    for name in ("reward", "end", "log_prob", "valid"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(item, name)[:, 1:3])


@pytest.mark.parametrize(("lag", "exponent", "weight"), [(0, 0.5, 1.0), (3, 0.5, 0.5), (3, 0.0, 1.0), (1, 2.0, 0.25)])
def test_a_stale_fragment_weighs_less(lag: int, exponent: float, weight: float) -> None:
    """(1 + lag)^-x."""
    assert sequences(random_fragment(SHAPE), lag, exponent).weight == weight


@pytest.mark.parametrize("config", [ImpalaConfig(), ImpalaConfig(normalise_advantages=True), AppoConfig(minibatches=2)])
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_nothing_of_an_unused_row_leaks(config: ImpalaConfig | AppoConfig, core: Any) -> None:
    """Rows 0 (of no episode that is here), 3 and 4 (broken): whatever they hold, the parameters have the same bits."""
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    shape = with_core(layout(5, 2), net)
    valid = np.array([[0, 1], [1, 1], [1, 1], [0, 1], [0, 1]], np.uint8)
    end = np.zeros((5, 2), np.uint8)
    end[2, 0] = End.TERMINATED
    end[4, 0] = End.BROKEN

    def trained(garbage: float, action: int) -> bytes:
        item = random_fragment(shape, valid=valid, end=end)
        obs, actions, log_prob = item.observation["obs"].copy(), item.action.copy(), item.log_prob.copy()
        obs[0, 0] = obs[4:, 0] = log_prob[0, 0] = log_prob[3:, 0] = garbage
        actions[0, 0] = actions[3:, 0] = action
        columns = {"obs": obs, "action": actions, "log_prob": log_prob, "valid": valid, "end": end}
        lab = Lab(shape, config, net=net)
        outcome = lab.update(random_fragment(shape, **columns))
        assert outcome.skipped == 0 and all(math.isfinite(number) for number in outcome.parts.values())
        return lab.parameters.numpy().tobytes()

    assert trained(math.nan, 1_000) == trained(0.5, 1) == trained(-1e30, -7)


def test_one_pass_says_what_a_pass_over_single_rows_says() -> None:
    """Values of all T+1 rows, log-probabilities and entropies of the T that have an action."""
    item = random_fragment(SHAPE, num_ends=2)
    model = Lab.fresh(SHAPE, NetConfig(hidden=(8,)))
    said = unrolled(model, sequences(item))
    for t in range(SHAPE.num_rows + 1):
        parameters, value = model({"obs": torch.tensor(item.observation["obs"][t])})
        torch.testing.assert_close(said.value[t], value)
        if t < SHAPE.num_rows:
            log_prob, entropy = model.head.log_prob_and_entropy(parameters, torch.tensor(item.action[t]))
            used = torch.tensor(item.valid[t].astype(bool))
            torch.testing.assert_close(said.log_prob[t][used], log_prob[used])
            torch.testing.assert_close(said.entropy[t], entropy)


@pytest.mark.parametrize("dtype", ["uint16", "int64", "float64", "uint8"])
def test_observations_of_any_dtype_are_cut_into_lanes(dtype: str) -> None:
    """Also those that torch can hardly compute with."""
    shape = layout(3, 4, obs=box(2, dtype=dtype))
    item = random_fragment(shape, obs=np.arange(32).reshape(4, 4, 2))
    said = unrolled(Lab.fresh(shape, NetConfig(hidden=(8,))), sequences(item).lanes(1, 3))
    assert said.value.shape == (4, 2) and bool(said.value.isfinite().all())


# ── minibatches of lanes ─────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_every_lane_is_in_exactly_one_minibatch(num_lanes: int, num_minibatches: int, num_fragments: int) -> None:
    """Nearly equal shares; a fragment of fewer lanes than minibatches is not in all of them."""
    item = random_fragment(layout(2, num_lanes), obs=np.tile(np.arange(num_lanes)[:, None], (3, 1, 2)))
    all_of_them = [sequences(item)] * num_fragments
    seen: list[int] = []
    for minibatch in range(num_minibatches):
        cut = minibatch_of(all_of_them, minibatch, num_minibatches)
        assert {each.num_lanes for each in cut} <= {num_lanes // num_minibatches, -(-num_lanes // num_minibatches)}
        seen += [int(lane) for each in cut for lane in each.observation["obs"][0, :, 0]]
    assert sorted(seen) == sorted(list(range(num_lanes)) * num_fragments)
    assert count_rows(all_of_them, num_minibatches).sum() == 2 * num_lanes * num_fragments


def test_the_plan_of_an_update() -> None:
    """Rows of all ranks count; a minibatch without any is no step; each epoch has an order of its own."""
    plan = LanePlan(counts=np.array([[3.0, 0.0, 2.0, 0.0], [1.0, 0.0, 0.0, 7.0]]), epochs=20)
    assert [plan.rows(m) for m in range(4)] == [4, 0, 2, 7]
    order = list(plan.order(np.random.default_rng(0)))
    epochs = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(order) == plan.num_steps == 60
    assert all(sorted(epoch) == [0, 2, 3] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3
    assert order == list(plan.order(np.random.default_rng(0)))


def test_a_rank_that_holds_other_rows_than_it_says_does_not_match() -> None:
    """By minibatch: the same number of rows in other lanes is something else."""
    item = random_fragment(layout(2, 2), valid=[[1, 1], [0, 1]])
    plan = LanePlan(counts=np.array([[1.0, 2.0], [2.0, 1.0]]), epochs=1)
    assert plan.matches(0, [sequences(item)]) and not plan.matches(1, [sequences(item)])
