"""PPO: the loss by hand, the rows of each epoch, and batches of awkward sizes."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.distributions import make_head
from common.errors import ConfigError
from common.fragment import End, Fragment
from common.nets import ActorCritic
from common.parameters import FlatParameters
from learner.algorithms.outcome import UpdateOutcome
from learner.algorithms.ppo import PPO, PPOConfig, ppo_loss
from learner.batches import Batch, BatchBuilder
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.group import OneRank
from tests.support import box, discrete, fragment, layout

LOG_2 = math.log(2.0)


class Table(nn.Module):
    """The same logits and value for every observation; remembers which rows (observation = row number) it saw."""

    def __init__(self, logits: list[float], value: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.level = nn.Parameter(torch.tensor(value))
        self.seen: list[list[int]] = []

    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        numbers = rows["obs"].reshape(len(rows["obs"]), -1)[:, 0]
        self.seen.append([int(number) for number in numbers])
        return self.logits.expand(len(numbers), -1), self.level.expand(len(numbers))


def table(logits: tuple[float, ...] = (0.0, 0.0), value: float = 2.0) -> ActorCritic:
    """A table with a categorical head."""
    return ActorCritic(Table(list(logits), value), make_head(discrete(len(logits))))


def batch(ratio: list[float], advantage: list[float], old_value: list[float], target: list[float]) -> Batch:
    """Rows of which the table's policy (1/2 each) is `ratio` times as likely as the one that acted."""
    return Batch(
        observation={"obs": torch.arange(len(ratio))},
        action=torch.tensor([0, 1] * len(ratio))[: len(ratio)],
        log_prob=torch.tensor([-LOG_2 - math.log(value) for value in ratio]),
        value=torch.tensor(old_value),
        advantage=torch.tensor(advantage),
        target=torch.tensor(target),
    )


FOUR = batch([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0], [1.0, 2.0, 1.0, 5.0], [3.0, 2.0, 0.0, 4.0])


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_clipped_objective_by_hand() -> None:
    """Four rows, one for each side of the clip and sign: objectives 1.2, -1.5, 0.5, -0.8; the loss is 0.6 / 4.

    Value 2 against targets 3, 2, 0, 4: 0.5 (1 + 0 + 4 + 4) / 4 = 1.125. Entropy log 2.
    """
    losses = ppo_loss(table(), FOUR, PPOConfig(clip=0.2, value_coefficient=0.5, entropy_coefficient=0.1))
    assert losses.policy == pytest.approx(0.15, abs=1e-6)
    assert losses.value == pytest.approx(1.125)
    assert losses.entropy == pytest.approx(LOG_2)
    assert losses.total.item() == pytest.approx(0.15 + 0.5 * 1.125 - 0.1 * LOG_2, abs=1e-6)
    assert losses.clip_fraction == 1.0
    assert losses.approximate_kl == pytest.approx((0.5 - math.log(1.5) - 0.5 + LOG_2) / 2, abs=1e-6)


def test_the_clipped_value_loss_takes_the_worse_of_both() -> None:
    """Old values 1, 2, 1, 5, clip 0.5: 1.5, 2, 1.5, 4.5; squares max(2.25, 1), 0, max(2.25, 4), max(0.25, 4)."""
    losses = ppo_loss(table(), FOUR, PPOConfig(value_clip=0.5))
    assert losses.value == pytest.approx(0.5 * (2.25 + 0 + 4 + 4) / 4)


def test_a_clipped_row_pulls_no_gradient() -> None:
    """A ratio already above 1 + ε with a positive advantage, or below 1 - ε with a negative one, is left alone."""

    def pull(ratio: float, advantage: float) -> float:
        model = table()
        ppo_loss(model, batch([ratio], [advantage], [2.0], [2.0]), PPOConfig()).total.backward()
        gradient = model.body.logits.grad
        assert gradient is not None
        return gradient.abs().sum().item()

    assert (pull(1.5, 1.0), pull(0.5, -1.0)) == (0.0, 0.0)
    assert pull(1.5, -1.0) > 0.0 and pull(0.5, 1.0) > 0.0 and pull(1.1, 1.0) > 0.0


def test_at_the_first_pass_the_policy_loss_is_the_mean_advantage() -> None:
    """Ratio 1 on every row: nothing is clipped, the KL estimate is 0."""
    losses = ppo_loss(table(), batch([1.0] * 3, [1.0, 2.0, 6.0], [2.0] * 3, [2.0] * 3), PPOConfig())
    assert (losses.policy, losses.clip_fraction) == (pytest.approx(-3.0), 0.0)
    assert losses.approximate_kl == pytest.approx(0.0, abs=1e-7)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_the_kl_estimate_is_never_negative(ratios: list[float]) -> None:
    """r - 1 - log r, whatever the ratios: a negative one could never stop an update."""
    zeros = [0.0] * len(ratios)
    assert ppo_loss(table(), batch(ratios, zeros, zeros, zeros), PPOConfig()).approximate_kl >= -1e-6


# ── an update ────────────────────────────────────────────────────────────────────────────────────────────────────


class Lab:
    """A table, its optimiser and PPO over fragments of `num_rows` rows whose observation is the row's number."""

    def __init__(self, num_rows: int, *, learning_rate: float = 1e-2, **ppo: Any) -> None:
        self.layout = layout(num_rows, obs=box(dtype="int64"))
        self.model = table()
        self.parameters = FlatParameters(self.model, trainable=True)
        optimiser = Optimiser(OptimiserConfig(learning_rate=learning_rate), self.parameters)
        group = OneRank(0, self.parameters)
        step = GradientStep(self.parameters, optimiser, group, max_gradient_norm=0.5)
        own, others = (BatchBuilder(self.layout, torch.device("cpu")) for _ in range(2))
        self.ppo = PPO(PPOConfig(**ppo), self.model, step, group, own, others)

    def fragment(self, **arrays: Any) -> Fragment:
        """Random rewards; on the table's policy."""
        rows = self.layout.num_rows
        rng = np.random.default_rng(0)
        defaults = {
            "reward": rng.standard_normal(rows),
            "log_prob": [-LOG_2] * rows,
            "action": rng.integers(2, size=rows),
        }
        return fragment(self.layout, obs=np.arange(rows + 1), **(defaults | arrays))

    def update(self, *fragments: Fragment, seed: int = 0) -> UpdateOutcome:
        """One update with a fresh shuffle stream of `seed`."""
        return self.ppo.update([Accepted(fragment=f, lag=0, gap=0) for f in fragments], np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("num_rows", "minibatch", "sizes"),
    [
        (12, 4, [4, 4, 4]),
        (13, 4, [5, 4, 4]),
        (5, 4, [5]),
        (1, 4, [1]),
        (3, 100, [3]),
        (7, 1, [1] * 7),
        (11, 4, [4, 4, 3]),
    ],
)
def test_every_valid_row_is_seen_exactly_once_per_epoch(num_rows: int, minibatch: int, sizes: list[int]) -> None:
    """The parts are nearly equal, also for one row more than a minibatch; each epoch is shuffled anew."""
    lab = Lab(num_rows, minibatch=minibatch, epochs=3)
    outcome = lab.update(lab.fragment())
    seen = lab.model.body.seen
    assert [len(rows) for rows in seen] == sizes * 3
    epochs = [list(chain(*seen[i : i + len(sizes)])) for i in range(0, len(seen), len(sizes))]
    assert [sorted(rows) for rows in epochs] == [list(range(num_rows))] * 3
    if num_rows > 4:
        assert epochs[0] != epochs[1] != epochs[2]
    assert (outcome.committed, outcome.skipped) == (3 * len(sizes), 0)


def test_invalid_rows_are_in_no_minibatch() -> None:
    """C02: of two fragments, one with filler rows."""
    lab = Lab(6, minibatch=3, epochs=1)
    lab.update(lab.fragment(valid=[1, 0, 1, 1, 0, 1]), lab.fragment(valid=[0, 1, 0, 0, 0, 0]))
    assert sorted(chain(*lab.model.body.seen)) == [0, 1, 2, 3, 5]


def test_the_same_shuffle_gives_the_same_bits_and_another_one_others() -> None:
    """Minibatches are drawn from the stream that is handed in, and from nothing else."""

    def trained(seed: int) -> bytes:
        lab = Lab(16, minibatch=4)
        lab.update(lab.fragment(), seed=seed)
        return lab.parameters.numpy().tobytes()

    first = trained(1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert trained(1) == first
    assert trained(2) != first


def test_an_update_stops_after_the_epoch_whose_kl_is_too_large() -> None:
    """One minibatch: the first epoch measures KL 0, the second that of the first step, and there it ends."""
    arrays = {"action": [0] * 4 + [1] * 4, "reward": [1.0] * 4 + [-1.0] * 4, "end": [End.TERMINATED] * 8}
    lab = Lab(8, minibatch=8, epochs=9, learning_rate=0.5, target_kl=1e-3)
    outcome = lab.update(lab.fragment(**arrays))
    assert (outcome.committed, outcome.statistics["stopped_early"]) == (2, 1.0)
    patient = Lab(8, minibatch=8, epochs=9, learning_rate=0.5, target_kl=0.0)
    outcome = patient.update(patient.fragment(**arrays))
    assert (outcome.committed, outcome.statistics["stopped_early"]) == (9, 0.0)


def test_advantages_are_normalised_over_the_batch_not_the_minibatch() -> None:
    """At the first pass the weighted mean of the policy losses is minus the mean advantage: 0 if normalised."""
    arrays = {"reward": [1.0, 2.0, 6.0], "end": [End.TERMINATED] * 3, "value": [0.0] * 4}
    for normalise, expected in ((False, -3.0), (True, 0.0)):
        lab = Lab(3, minibatch=3, epochs=1, normalise_advantages=normalise)
        assert lab.update(lab.fragment(**arrays)).parts["policy"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("reward", [0.0, 3.0])
def test_constant_advantages_of_any_number_keep_everything_finite(num_rows: int, reward: float) -> None:
    """C14: one row, and a minibatch and one row, all alike: the policy gets no push, and nothing becomes NaN."""
    lab = Lab(num_rows, minibatch=4)
    arrays = {"reward": [reward] * num_rows, "end": [End.TERMINATED] * num_rows, "value": [0.0] * (num_rows + 1)}
    outcome = lab.update(lab.fragment(**arrays))
    assert outcome.skipped == 0
    numbers = outcome.statistics | outcome.parts
    assert all(math.isfinite(value) for value in numbers.values()), numbers
    assert np.isfinite(lab.parameters.numpy()).all()
    assert outcome.statistics["explained_variance"] == 0.0
    if num_rows > 1:
        assert outcome.parts["policy"] == 0.0


def test_all_rows_but_one_masked_is_a_batch_of_one() -> None:
    """C14, C02: the same bits as from that row alone."""
    many, one = Lab(6), Lab(1)
    valid = [0, 0, 0, 1, 0, 0]
    many.update(many.fragment(valid=valid, reward=[2.0] * 6, action=[1] * 6, end=[End.TERMINATED] * 6))
    one.update(one.fragment(reward=[2.0], action=[1], end=[End.TERMINATED]))
    assert np.isfinite(many.parameters.numpy()).all()
    assert many.parameters.numpy().tobytes() == one.parameters.numpy().tobytes()


@pytest.mark.parametrize("fragments", [0, 1, 2])
def test_nothing_valid_is_no_update(fragments: int) -> None:
    """No fragment, or only fragments of filler rows: nothing is committed and nothing changes."""
    lab = Lab(3)
    before = lab.parameters.numpy().tobytes()
    outcome = lab.update(*[lab.fragment(valid=[0, 0, 0])] * fragments)
    assert (outcome.committed, outcome.skipped, outcome.skipped_at, outcome.statistics) == (0, 0, "", {})
    assert set(outcome.parts.values()) == {0.0}
    assert lab.parameters.numpy().tobytes() == before


@pytest.mark.parametrize(
    "arrays", [{"reward": [1e38] * 4}, {"log_prob": [math.nan] * 4}, {"reward": [math.nan, 0, 0, 0]}]
)
def test_numbers_that_cannot_be_trained_on_are_skipped_and_named(arrays: dict[str, Any]) -> None:
    """C16: returns beyond float32, or a NaN: no parameter moves, the report names one, nobody warns."""
    lab = Lab(4, minibatch=4, epochs=2, discount=1.0, gae_lambda=1.0)
    before = lab.parameters.numpy().tobytes()
    outcome = lab.update(lab.fragment(value=[1e38] * 5, **arrays))
    assert (outcome.committed, outcome.skipped) == (0, 2)
    assert outcome.skipped_at.startswith("body.")
    assert lab.parameters.numpy().tobytes() == before


def test_explained_variance_by_hand() -> None:
    """Targets 1, 3 (variance 1); errors of the recorded values 0, 1 (variance 1/4): 1 - 1/4."""
    lab = Lab(2, normalise_advantages=False)
    item = lab.fragment(reward=[1.0, 3.0], value=[1.0, 2.0, 0.0], end=[End.TERMINATED] * 2)
    assert lab.update(item).statistics["explained_variance"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("discount", 1.1),
        ("gae_lambda", -0.1),
        ("discount", math.nan),
        ("clip", 0.0),
        ("clip", 1.0),
        ("value_clip", -1.0),
        ("entropy_coefficient", math.inf),
        ("target_kl", math.nan),
        ("epochs", 0),
        ("minibatch", 0),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused(field: str, value: float) -> None:
    """Named by its key, with what is allowed."""
    with pytest.raises(ConfigError, match=f"ppo.{field}; got"):
        PPOConfig(**{field: value})
