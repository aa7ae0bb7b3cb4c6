"""Actor and learner together, without a driver: what only memory can solve is learnt with a core and not without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.env.config import EnvConfig
from actors.evaluate import EvaluationConfig
from actors.worker import ActorConfig, ActorWorker, CollectOrder, EvaluateOrder
from common.clock import ManualClock
from common.fragment import FragmentLayout
from common.nets import NetConfig
from learner.algorithms.impala import ImpalaConfig
from learner.rank import LearnerRank
from learner.reports import UpdateOrder
from tests.learner.test_rank import alone
from tests.support import box, discrete, rank_config, space


class CueEnv(gymnasium.Env):
    """The first observation shows a cue of two; the fifth action earns 1 if it names the cue. Guessing earns 0.5."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index, self.cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.index += 1
        over = self.index == 5
        return np.array([0, self.index / 5], np.float32), float(over and action == self.cue), over, False, {}


gymnasium.register("truestep-tests/Cue-v0", entry_point=CueEnv)


def learnt(core: Any, updates: int) -> float:
    """Greedy mean return after some updates of IMPALA from one actor, in each of which both agree on what was acted."""
    net = NetConfig(hidden=(16,), core=core, core_size=32)
    layout = FragmentLayout(
        num_rows=33,
        num_lanes=16,
        observation=space(obs=box(2, low=-1.0, high=1.0)),
        action=discrete(2),
        state_size=net.state_size,
    )
    rank: LearnerRank = alone(
        replace(rank_config(layout, learning_rate=1e-2), net=net, algorithm=ImpalaConfig(discount=0.95))
    )
    env = EnvConfig(id="truestep-tests/Cue-v0", vectorise="sync")
    actor = ActorConfig(run="test", seed=7, actor=0, incarnation=0, lease="lease", env=env, net=net, layout=layout)
    worker = ActorWorker(actor, EvaluationConfig(lanes=16, max_ticks=100), ManualClock())
    worker.start()
    weights: Any = rank.publish(version=0, term=0)
    for update in range(updates):
        frame, _ = worker.collect(CollectOrder(update=update, term=0, version=update), weights)
        report, weights = rank.update(UpdateOrder(update=update, term=0, publish_as=update + 1), [frame.copy()])
        assert report.statistics["approximate_kl"] < 1e-6
    mean = worker.evaluate(EvaluateOrder(update=updates, episodes=64, final=True), weights).mean
    worker.close()
    return mean


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_cue_of_the_first_tick_is_acted_on_at_the_fifth(core: str) -> None:
    """Every greedy episode earns its reward after 40 updates."""
    assert learnt(core, 40) == 1.0


def test_without_memory_the_cue_is_guessed() -> None:
    """The environment does need memory: a feed-forward policy stays near a half."""
    assert learnt("none", 40) < 0.8
