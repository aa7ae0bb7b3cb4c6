"""One actor: environments, policy, rollout, clock, streams. No Ray in it.

weights document ──► policy ┐
                            ├──► rollout ──► frame (one MessagePack document) + summary
environments ──► lanes ─────┘

loop      consumes                       produces            waits for       unblocked by
collect   an order, a weights document   a frame, a summary  environments    their step, or the watchdog
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from actors.env.lanes import LaneFacts, Lanes
from actors.env.make import make_lanes
from actors.evaluate import EvaluationConfig, EvaluationResult, evaluate, evaluation_lanes
from actors.policy import Policy
from actors.rollout import Beat, Rollout, RolloutReport
from actors.watchdog import Watchdog
from common.clock import Clock
from common.errors import CheckpointError, WireError
from common.fragment import FragmentBuffer, FragmentHeader, FragmentLayout, FragmentSummary
from common.nets import NetConfig
from common.normalize import ProcessingConfig, RunningReturns
from common.process import GarbageCollector
from common.rng import GlobalGenerators, Purpose, Role, Streams, generator_state, set_generator_state
from common.stint import Stint, StintMeter
from common.timings import FragmentTimings
from common.wire import pack_plain, unpack_plain

SNAPSHOT_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """All that one actor is made from: plain records, so it travels to another process.

    Attributes:
        run: the run's name.
        seed: root seed of the run.
        actor: index; part of every stream.
        incarnation: life of the streams; part of every stream.
        lease: token of this process; in no stream.
        env, net: configuration of environment and network.
        layout: of the fragments.
        processing, discount: by which discounted returns are kept, where `layout` has them.
        fault_report: where the watchdog writes before it ends the process; "" runs no watchdog (engine inline).
        metrics_ports: "first-last" range for `/metrics`; "" serves none.
    """

    run: str
    seed: int
    actor: int
    incarnation: int
    lease: str
    env: EnvConfig
    net: NetConfig
    layout: FragmentLayout
    processing: ProcessingConfig = field(default_factory=ProcessingConfig)
    discount: float = 0.99
    fault_report: str = ""
    metrics_ports: str = ""

    @property
    def who(self) -> str:
        """Name in messages."""
        return f"actor {self.actor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOrder:
    """What the conductor asks for: one fragment for `update` of `term`, made by the weights of `version`; None = by the
    newest that were offered."""

    update: int
    term: int
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOrder:
    """Greedy episodes by the weights that come with the order.

    Attributes:
        update: names the evaluation; its episodes are a function of the run's seed and of this alone.
        episodes: how many.
        final: the evaluation that ends a run draws from a stream of its own.
    """

    update: int
    episodes: int
    final: bool


class ActorWorker:
    """Collects fragments on demand; between two calls it is idle."""

    def __init__(self, config: ActorConfig, evaluation: EvaluationConfig, clock: Clock) -> None:
        self._config = config
        self._evaluation = evaluation
        self._clock = clock
        self._streams = Streams(config.seed)
        self._collector = GarbageCollector(clock)
        self._stints = StintMeter(clock)
        self._watchdog = Watchdog(clock, Path(config.fault_report), who=config.who) if config.fault_report else None
        self._sequence = 0

    def start(self, snapshot: bytes | None = None) -> LaneFacts:
        """Make environments and policy; begin fresh, or where `snapshot` was taken. Raises what `make_lanes` does."""
        config = self._config
        if self._watchdog is not None:
            self._watchdog.start()
        globals_sequence = self._sequence_of(Purpose.GLOBALS)
        self._globals = GlobalGenerators(globals_sequence)
        self._noise = [self._generator(Purpose.ACTION, lane) for lane in range(config.layout.num_lanes)]
        self._policy = Policy(config.layout.observation, config.layout.action, config.net)
        self._policy.begin(config.layout.num_lanes)
        self._greedy = Policy(config.layout.observation, config.layout.action, config.net)
        self._buffer = FragmentBuffer(config.layout)
        with self._working("construct", config.env.construct_deadline_s):
            self._lanes = make_lanes(
                config.env,
                config.layout.num_lanes,
                streams=self._streams,
                role=Role.ACTOR,
                index=config.actor,
                incarnation=config.incarnation,
                who=config.who,
            )
            self._rollout = self._make_rollout(self._lanes)
            facts = self._lanes.facts
        if snapshot is None:
            with self._working("reset", config.env.step_deadline_s):
                self._lanes.start()
        else:
            self._restore(snapshot)
        if self._watchdog is not None:
            self._collector.freeze()
        return facts

    def _make_rollout(self, lanes: Lanes) -> Rollout:
        return Rollout(
            lanes,
            self._policy,
            self._buffer,
            self._clock,
            void_broken=self._config.env.on_nonfinite == "drop_episode",
            beat=self._beat(),
            returns=self._running_returns(),
        )

    def _running_returns(self) -> RunningReturns | None:
        config = self._config
        if not config.layout.returns:
            return None
        return RunningReturns(config.layout.num_lanes, config.processing, config.discount)

    def _beat(self) -> Beat:
        return self._watchdog.mark if self._watchdog is not None else _no_beat

    def offer(self, weights: Any) -> int:
        """Verify weights and hold them ready for the next fragment; returns their version. From any thread.

        Raises:
            WireError: damaged weights; what was held ready before is kept.
        """
        return self._policy.offer(weights)

    def collect(self, order: CollectOrder, weights: Any) -> tuple[NDArray[np.uint8], FragmentSummary]:
        """One fragment. The frame is a view of a buffer that the next call overwrites: copy or send it first.

        Raises:
            WireError: damaged weights, or those of another version than ordered.
        """
        self._stints.begin()
        if order.version is None:
            self._policy.swap()
        elif self._policy.version != order.version:
            self._policy.follow(weights)
            self._check_version(order)
        pause_ns = self._collector.collect() if self._watchdog is not None else 0
        start_ns = self._clock.now_ns()
        with self._working("step", self._config.env.step_deadline_s):
            report = self._rollout.fill(self._policy.draw_noise(self._noise, self._config.layout.num_rows))
        end_ns = self._clock.now_ns()
        header = self._header(order, report, start_ns, end_ns)
        frame = self._buffer.seal(header)
        self._sequence += 1
        summary = _summary(header, report, frame.nbytes, pause_ns, self._buffer.digest())
        return frame, _with_cost(summary, self._stints.end())

    def timings(self) -> FragmentTimings:
        """How long ticks and episodes of the latest fragment took, for this process's metrics."""
        return self._rollout.timings()

    def _check_version(self, order: CollectOrder) -> None:
        """A fragment must not bear a version that did not make it."""
        if self._policy.version != order.version:
            raise WireError(
                f"weights of another version reached {self._config.who}",
                got=self._policy.version,
                allowed=f"{order.version}, as ordered for update {order.update}",
            )

    def _header(self, order: CollectOrder, report: RolloutReport, start_ns: int, end_ns: int) -> FragmentHeader:
        config = self._config
        return FragmentHeader(
            run=config.run,
            actor=config.actor,
            lease=config.lease,
            incarnation=config.incarnation,
            sequence=self._sequence,
            term=order.term,
            version=self._policy.version,
            update=order.update,
            num_rows=config.layout.num_rows,
            num_lanes=config.layout.num_lanes,
            num_valid=report.num_valid,
            start_ns=start_ns,
            end_ns=end_ns,
            clock_id=self._clock.clock_id,
        )

    def evaluate(self, order: EvaluateOrder, weights: Any) -> EvaluationResult:
        """Greedy episodes on environments and streams of their own; the actor's training state is not touched."""
        self._greedy.follow(weights)
        config, evaluation = self._config, self._evaluation
        fresh = evaluation_lanes(
            config.env,
            min(order.episodes, evaluation.lanes),
            seed=config.seed,
            update=order.update,
            final=order.final,
            who=f"{config.who} (evaluation)",
        )
        longest_s = max(config.env.construct_deadline_s, config.env.step_deadline_s)
        with self._watched("evaluate", longest_s), fresh as lanes:
            return evaluate(
                lanes, self._greedy, episodes=order.episodes, max_ticks=evaluation.max_ticks, beat=self._beat()
            )

    def snapshot(self) -> bytes | None:
        """Everything `start` needs to go on from here, bit for bit; None where the environment cannot be restored."""
        with self._working("snapshot", self._config.env.step_deadline_s):
            lanes = self._lanes.snapshot()
        if lanes is None:
            return None
        plain = {
            "schema": SNAPSHOT_SCHEMA,
            "incarnation": self._config.incarnation,
            "sequence": self._sequence,
            "lanes": lanes,
            "rollout": self._rollout.state(),
            "noise": [generator_state(generator) for generator in self._noise],
            "globals": self._globals.state(),
        }
        return pack_plain(plain, what=f"snapshot of {self._config.who}")

    def _restore(self, snapshot: bytes) -> None:
        plain = unpack_plain(snapshot, what=f"snapshot of {self._config.who}")
        if plain["schema"] != SNAPSHOT_SCHEMA or plain["incarnation"] != self._config.incarnation:
            raise CheckpointError(
                f"snapshot of {self._config.who}",
                got=f"schema {plain['schema']}, incarnation {plain['incarnation']}",
                allowed=f"schema {SNAPSHOT_SCHEMA}, incarnation {self._config.incarnation}",
            )
        with self._working("restore", self._config.env.step_deadline_s):
            self._lanes.restore(plain["lanes"], self._beat())
        self._rollout.set_state(plain["rollout"])
        for generator, state in zip(self._noise, plain["noise"], strict=True):
            set_generator_state(generator, state)
        self._globals.set_state(plain["globals"])
        self._sequence = plain["sequence"]

    def close(self) -> None:
        """Close the environments within their deadline; child processes are gone afterwards."""
        if hasattr(self, "_lanes"):
            with self._working("close", self._config.env.step_deadline_s):
                self._lanes.close()
        if self._watchdog is not None:
            self._watchdog.close()

    @contextmanager
    def _working(self, phase: str, deadline_s: float) -> Iterator[None]:
        """This worker's process-wide generators in, and the watchdog on."""
        with self._watched(phase, deadline_s), self._globals.installed():
            yield

    @contextmanager
    def _watched(self, phase: str, deadline_s: float) -> Iterator[None]:
        if self._watchdog is None:
            yield
            return
        self._watchdog.enter(phase, deadline_s)
        try:
            yield
        finally:
            self._watchdog.leave()

    def _sequence_of(self, purpose: Purpose) -> np.random.SeedSequence:
        config = self._config
        return self._streams.sequence(Role.ACTOR, config.actor, incarnation=config.incarnation, purpose=purpose)

    def _generator(self, purpose: Purpose, lane: int) -> np.random.Generator:
        config = self._config
        return self._streams.generator(
            Role.ACTOR, config.actor, incarnation=config.incarnation, lane=lane, purpose=purpose
        )


def _summary(
    header: FragmentHeader, report: RolloutReport, num_bytes: int, pause_ns: int, digest: int
) -> FragmentSummary:
    return FragmentSummary(
        actor=header.actor,
        lease=header.lease,
        incarnation=header.incarnation,
        sequence=header.sequence,
        term=header.term,
        version=header.version,
        update=header.update,
        num_valid=report.num_valid,
        num_voided=report.num_voided,
        num_bytes=num_bytes,
        episode_returns=report.episode_returns,
        episode_lengths=report.episode_lengths,
        start_ns=header.start_ns,
        end_ns=header.end_ns,
        policy_ns=report.policy_ns,
        env_ns=report.env_ns,
        gc_pause_ns=(pause_ns,) if pause_ns else (),
        digest=digest,
        ticks=report.ticks,
    )


def _with_cost(summary: FragmentSummary, stint: Stint) -> FragmentSummary:
    return replace(
        summary,
        waited_ns=stint.waited_ns,
        cpu_ns=stint.cpu_ns,
        delay_ns=stint.delay_ns,
        major_faults=stint.major_faults,
    )


def _no_beat(tick: int) -> None:
    """Engine inline runs no watchdog."""
