"""bfloat16 where products are made, float32 where anything is kept or added up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import ConfigError
from common.nets import NetConfig, make_actor_critic
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.algorithms.making import AlgorithmConfig
from learner.algorithms.ppo import PPOConfig
from learner.config import RankConfig
from tests.learner.ranks import Ranks
from tests.support import box, discrete, document, layout, rank_config, space

IMAGE = space(obs=box(4, 40, 40, dtype="uint8", low=0, high=255))
each_algorithm = pytest.mark.parametrize(
    "algorithm",
    [ImpalaConfig(minibatches=2), AppoConfig(minibatches=2), PPOConfig(minibatch=8, epochs=1)],
    ids=["impala", "appo", "ppo"],
)


def config(algorithm: AlgorithmConfig, precision: str) -> RankConfig:
    made = rank_config(replace(layout(4, 4), observation=IMAGE))
    learner = replace(made.learner, precision=precision)  # type: ignore[arg-type]
    return replace(made, algorithm=algorithm, net=NetConfig(hidden=(16,)), learner=learner)


def documents(made: RankConfig) -> list[Any]:
    rng = np.random.default_rng(3)
    rows, lanes = made.layout.num_rows, made.layout.num_lanes
    found = []
    for actor in range(2):
        spec = made.layout.observation["obs"]
        shape = (rows + 1, lanes, *spec.shape)
        obs = rng.integers(0, 255, shape) if spec.dtype == "uint8" else rng.standard_normal(shape)
        header = {"actor": actor, "version": 0}
        arrays = {"obs": obs.astype(spec.dtype), "reward": rng.standard_normal((rows, lanes)).astype(np.float32)}
        found.append(document(made.layout, header=header, **arrays))
    return found


@each_algorithm
def test_an_update_in_bfloat16_is_near_that_in_float32_and_repeats_its_bits(algorithm: AlgorithmConfig) -> None:
    """The same parameters up to what eight bits of mantissa explain; not the same bits; twice the same bits."""
    states = []
    for precision in ("float32", "bfloat16", "bfloat16"):
        made = config(algorithm, precision)
        ranks = Ranks(made, 1)
        report = ranks.make(0, documents(made))[0]
        assert report.trained and report.skipped_steps == 0
        states.append(ranks.parameters())
    exact, first, second = states
    assert np.array_equal(first, second)
    assert not np.array_equal(exact, first)
    np.testing.assert_allclose(first, exact, atol=2.5 * made.optimiser.learning_rate * report.steps)


def test_parameters_gradients_and_outputs_stay_float32() -> None:
    """Only what is between them is narrow."""
    model = make_actor_critic(IMAGE, discrete(3), NetConfig(hidden=(16,)), np.random.default_rng(0))
    model.compute_in("bfloat16")
    parameters, value = model({"obs": torch.zeros(2, 4, 40, 40, dtype=torch.uint8)})
    (parameters.sum() + value.sum()).backward()  # type: ignore[no-untyped-call]
    assert parameters.dtype == value.dtype == torch.float32
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert {each.grad.dtype for each in model.parameters() if each.grad is not None} == {torch.float32}


def test_two_ranks_make_the_update_of_one() -> None:
    """Their parts add up as in float32."""
    made = config(ImpalaConfig(minibatches=2), "bfloat16")
    one, two = Ranks(made, 1), Ranks(made, 2)
    one.make(0, documents(made))
    two.make(0, documents(made))
    np.testing.assert_allclose(two.parameters(), one.parameters(), atol=1e-5)


@pytest.mark.parametrize("net", [NetConfig(core="gru", core_size=8), NetConfig(kind="mlp")], ids=["memory", "towers"])
def test_a_network_without_convolutions_is_refused(net: NetConfig) -> None:
    """It would gain nothing, or add up what is rounded in every row."""
    model = make_actor_critic(layout(4, 4).observation, discrete(2), net, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"learner.precision.*allowed: float32"):
        model.compute_in("bfloat16")
