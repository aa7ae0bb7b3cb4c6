"""One actor: what it makes is a function of its streams, its weights and its snapshot, and of nothing else."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from actors.env.make import read_specs
from actors.evaluate import EvaluationConfig, EvaluationResult
from actors.worker import ActorConfig, ActorWorker, CollectOrder, EvaluateOrder
from common.clock import ManualClock
from common.errors import CheckpointError, WireError
from common.fragment import Fragment, FragmentLayout, FragmentSummary, decode_fragment
from common.nets import NetConfig
from common.process import intra_op_threads
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import test_id
from tests.actors.test_policy import weights_document

ROWS = 12


class TorchDrawingEnv(gymnasium.Env[Any, Any]):
    """Observation: one draw each from the process-wide generators of torch, numpy and Python; ends after 7 steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.index = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.index += 1
        observation = self._draw()
        return observation, float(observation.sum()), self.index == 7, False, {}

    def _draw(self) -> Any:
        return np.array([torch.rand(()).item(), np.random.random(), random.random()], np.float32)


class SeedTellingEnv(gymnasium.Env[Any, Any]):
    """Episodes of one step, whose reward is the first draw of the episode's own seed."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.drawn = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.drawn = float(self.np_random.random())
        return np.array([self.drawn], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self.drawn], np.float32), self.drawn, True, False, {}


gymnasium.register("truestep-tests/TorchDrawing-v0", entry_point=TorchDrawingEnv)
gymnasium.register("truestep-tests/SeedTelling-v0", entry_point=SeedTellingEnv)

ENVIRONMENTS = {
    "CartPole, own vector": EnvConfig(id="CartPole-v1"),
    "CartPole, sync": EnvConfig(id="CartPole-v1", vectorise="sync"),
    "Pendulum": EnvConfig(id="Pendulum-v1"),
    "numpy and Python globals": EnvConfig(id=test_id("GlobalRng")),
    "torch globals": EnvConfig(id="truestep-tests/TorchDrawing-v0"),
    "SameStep": EnvConfig(id=test_id("CountingSameStep")),
}
EVERY = pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())


EITHER_CORE = pytest.mark.parametrize("core", ["none", "lstm"])


def config_of(
    env: EnvConfig, *, lanes: int = 3, actor: int = 0, incarnation: int = 0, core: Any = "none"
) -> ActorConfig:
    observation, action = read_specs(env)
    net = NetConfig(hidden=(8,), core=core, core_size=5)
    layout = FragmentLayout(
        num_rows=ROWS, num_lanes=lanes, observation=observation, action=action, state_size=net.state_size
    )
    return ActorConfig(
        run="test",
        seed=7,
        actor=actor,
        incarnation=incarnation,
        lease="lease",
        env=env,
        net=net,
        layout=layout,
    )


STARTED: list[ActorWorker] = []


class Actor:
    """A started worker and weights for it; closed by `closed_after`."""

    def __init__(self, config: ActorConfig, snapshot: bytes | None = None) -> None:
        self.config = config
        self.worker = ActorWorker(config, EvaluationConfig(lanes=2, max_ticks=40), ManualClock())
        self.facts = self.worker.start(snapshot)
        STARTED.append(self.worker)

    def weights(self, version: int) -> NDArray[np.uint8]:
        layout, net = self.config.layout, self.config.net
        return weights_document(layout.observation, layout.action, version=version, seed=version, net=net)

    def collect(self, update: int, *, version: int = 1) -> tuple[bytes, FragmentSummary]:
        order = CollectOrder(update=update, term=0, version=version)
        frame, summary = self.worker.collect(order, self.weights(version))
        return frame.tobytes(), summary

    def evaluate(self, update: int, *, version: int = 1, final: bool = False) -> EvaluationResult:
        order = EvaluateOrder(update=update, episodes=3, final=final)
        return self.worker.evaluate(order, self.weights(version))

    def decoded(self, frame: bytes) -> Fragment:
        return decode_fragment(frame, self.config.layout)


@pytest.fixture(autouse=True)
def closed_after() -> Any:
    """Every worker of a test is closed; each computes with one thread, as in a run."""
    with intra_op_threads(1):
        yield
    while STARTED:
        STARTED.pop().close()


# ---- snapshots -----------------------------------------------------------------------------------------------------


@EITHER_CORE
@EVERY
def test_a_worker_started_from_a_snapshot_goes_on_bit_for_bit(env: EnvConfig, core: str) -> None:
    """The next fragments' documents are equal in every byte, over new weights, whatever drew globally between."""
    config = config_of(env, core=core)
    unbroken = Actor(config)
    for update in range(2):
        unbroken.collect(update)
    snapshot = unbroken.worker.snapshot()
    assert unbroken.facts.restorable
    assert snapshot is not None
    np.random.seed(99)
    torch.manual_seed(99)
    random.seed(99)
    restored = Actor(config, snapshot)
    for update, version in [(2, 1), (3, 4), (4, 5)]:
        assert unbroken.collect(update, version=version) == restored.collect(update, version=version)
    assert unbroken.worker.snapshot() == restored.worker.snapshot()


@EVERY
def test_ticks_and_episodes_are_timed_apart_from_what_is_made(env: EnvConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick has its time, all together that of the summary; every episode that this process began has one."""
    readings = itertools.count(1)
    monkeypatch.setattr(ManualClock, "now_ns", lambda _: next(readings) ** 2)
    config = config_of(env)
    unbroken = Actor(config)
    for update in range(3):
        _, summary = unbroken.collect(update)
        timings = unbroken.worker.timings()
        assert (len(timings.step_ns), timings.step_ns.sum()) == (summary.ticks, summary.env_ns)
        assert summary.env_ns > 0
        assert len(timings.episode_ns) == len(summary.episode_lengths)
    restored = Actor(config, unbroken.worker.snapshot())
    ended = timed = 0
    for update in range(3, 12):
        _, summary = restored.collect(update)
        ended, timed = ended + len(summary.episode_lengths), timed + len(restored.worker.timings().episode_ns)
    assert timed == max(0, ended - config.layout.num_lanes)


@EITHER_CORE
@EVERY
def test_an_evaluation_disturbs_no_training_stream(env: EnvConfig, core: str) -> None:
    """Fragments after an evaluation are those of a worker that never evaluated; so is a snapshot."""
    config = config_of(env, core=core)
    evaluating, plain = Actor(config), Actor(config)
    for update in range(3):
        assert evaluating.collect(update) == plain.collect(update)
        evaluating.evaluate(update, version=9)
        assert evaluating.worker.snapshot() == plain.worker.snapshot()


@EVERY
def test_an_evaluation_is_the_same_on_every_actor_at_any_time(env: EnvConfig) -> None:
    """Its episodes are a function of the seed and of the update's number; another number plays other episodes."""
    one, other = Actor(config_of(env)), Actor(config_of(env, actor=3, incarnation=2, lanes=1))
    first = one.evaluate(5)
    other.collect(0)
    assert other.evaluate(5) == first
    assert one.evaluate(5) == first
    if "Counting" not in env.id and "GlobalRng" not in env.id:  # their returns do not vary
        assert one.evaluate(6) != first


def test_no_episode_is_both_trained_on_and_judged_by() -> None:
    """Episodes of training, of evaluations and of the final evaluation of the same update are all different ones."""
    actor = Actor(config_of(EnvConfig(id="truestep-tests/SeedTelling-v0")))
    returns = [*actor.collect(0)[1].episode_returns]
    for update in range(3):
        returns += [*actor.evaluate(update).returns, *actor.evaluate(update, final=True).returns]
    assert len(set(returns)) == len(returns) >= 18 + 6


def test_process_wide_generators_of_the_caller_are_left_as_they_were() -> None:
    """An engine may run many workers, and whatever else, in one process."""
    actor = Actor(config_of(ENVIRONMENTS["torch globals"]))
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    actor.collect(0)
    actor.evaluate(1)
    actor.worker.snapshot()
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]


def test_what_cannot_be_restored_gives_no_snapshot() -> None:
    """The facts say why; the run goes on."""
    actor = Actor(config_of(EnvConfig(id=test_id("StatefulObject"))))
    assert not actor.facts.restorable
    assert actor.facts.reason
    assert actor.worker.snapshot() is None
    actor.collect(0)


def test_a_snapshot_of_another_incarnation_or_schema_is_refused() -> None:
    """Its streams would be drawn from twice; a newer release may mean something else by the same field."""
    config = config_of(ENVIRONMENTS["CartPole, own vector"])
    snapshot = Actor(config).worker.snapshot()
    assert snapshot is not None
    with pytest.raises(CheckpointError, match="snapshot of actor 0") as caught:
        Actor(replace(config, incarnation=1), snapshot)
    assert "incarnation 0" in str(caught.value.got)
    newer = pack_plain(unpack_plain(snapshot) | {"schema": 2})
    with pytest.raises(CheckpointError, match="schema 2"):
        Actor(config, newer)


def test_a_damaged_snapshot_is_refused() -> None:
    """Never started from half a state."""
    config = config_of(ENVIRONMENTS["CartPole, own vector"])
    snapshot = Actor(config).worker.snapshot()
    assert snapshot is not None
    with pytest.raises(WireError, match="snapshot of actor 0"):
        Actor(config, snapshot[: len(snapshot) // 2])


# ---- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [ENVIRONMENTS["CartPole, sync"], ENVIRONMENTS["Pendulum"]])
def test_more_lanes_leave_the_others_alone(env: EnvConfig) -> None:
    """Where each lane has its own streams, lane b of 5 lives through what lane b of 2 does."""
    few, many = Actor(config_of(env, lanes=2)), Actor(config_of(env, lanes=5))
    for update in range(3):
        one, other = few.decoded(few.collect(update)[0]), many.decoded(many.collect(update)[0])
        for name in ("action", "reward", "end", "valid"):
            assert np.allclose(getattr(one, name), getattr(other, name)[:, :2], atol=1e-5)
        assert np.allclose(one.observation["obs"], other.observation["obs"][:, :2], atol=1e-4)


@EVERY
def test_actors_and_incarnations_have_streams_of_their_own(env: EnvConfig) -> None:
    """No two live through the same; the same one always does."""
    keys = [(0, 0), (1, 0), (0, 1)]
    frames = [Actor(config_of(env, actor=actor, incarnation=life)) for actor, life in keys]
    actions = [actor.decoded(actor.collect(0)[0]).action.tolist() for actor in frames]
    assert actions[0] != actions[1] != actions[2] != actions[0]
    again = Actor(config_of(env))
    assert again.decoded(again.collect(0)[0]).action.tolist() == actions[0]


def test_lease_and_version_are_in_no_stream() -> None:
    """A restarted process, or a publication of another number, changes nothing that is learned from."""
    config = config_of(ENVIRONMENTS["CartPole, own vector"])
    one, other = Actor(config), Actor(replace(config, lease="another"))
    document = weights_document(config.layout.observation, config.layout.action, version=9, net=config.net)
    twin = weights_document(config.layout.observation, config.layout.action, version=2, net=config.net)
    frame, _ = one.worker.collect(CollectOrder(update=0, term=0, version=9), document)
    first = one.decoded(frame.tobytes())
    frame, _ = other.worker.collect(CollectOrder(update=0, term=0, version=2), twin)
    second = other.decoded(frame.tobytes())
    for name in ("action", "reward", "end", "valid", "log_prob", "value"):
        assert (getattr(first, name) == getattr(second, name)).all()


# ---- fragments and weights -----------------------------------------------------------------------------------------


def test_header_and_summary_say_the_same() -> None:
    """Who, what for, by which weights, how many: the driver reads the summary, the learner the header."""
    actor = Actor(config_of(ENVIRONMENTS["CartPole, sync"], actor=2, incarnation=1))
    for sequence in range(3):
        frame, summary = actor.collect(10 + sequence, version=4)
        header = actor.decoded(frame).header
        for name in set(header.to_plain()) & set(summary.__slots__):
            assert getattr(header, name) == getattr(summary, name)
        assert (header.actor, header.incarnation, header.sequence) == (2, 1, sequence)
        assert (header.update, header.version, header.run, header.lease) == (10 + sequence, 4, "test", "lease")
        assert summary.num_bytes == len(frame)
        assert summary.num_valid == int(actor.decoded(frame).valid.sum())


def test_damaged_weights_are_refused_and_the_actor_goes_on_with_the_old() -> None:
    """Nothing was stepped and nothing drawn: the next fragment is the one that would have been made."""
    config = config_of(ENVIRONMENTS["CartPole, sync"])
    harmed, plain = Actor(config), Actor(config)
    assert harmed.collect(0) == plain.collect(0)
    damaged = harmed.weights(2)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(WireError):
        harmed.worker.collect(CollectOrder(update=1, term=0, version=2), damaged)
    assert harmed.collect(1, version=1) == plain.collect(1, version=1)


def test_weights_of_another_version_than_ordered_are_refused() -> None:
    """A fragment never bears a version that did not make it."""
    actor = Actor(config_of(ENVIRONMENTS["CartPole, sync"]))
    with pytest.raises(WireError, match="another version reached actor 0") as caught:
        actor.worker.collect(CollectOrder(update=3, term=0, version=2), actor.weights(5))
    assert (caught.value.got, caught.value.allowed) == ("5", "2, as ordered for update 3")


def test_a_worker_that_never_started_can_be_closed() -> None:
    """So can one that is closed already."""
    worker = ActorWorker(config_of(ENVIRONMENTS["CartPole, sync"]), EvaluationConfig(), ManualClock())
    worker.close()
    worker.close()
