"""What a run has done, in numbers: the driver counts, this exports; totals that would go back are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common import driver_catalogue as catalogue
from common.clock import NS_PER_S, Clock, MonotonicClock
from common.metric_kinds import Metric
from common.metric_labels import (
    ActorState,
    ClosedLabels,
    DropReason,
    RankState,
    RecoveryCause,
    SaveResult,
    Stage,
    Stall,
    SyncFault,
)
from common.metric_values import HasValues, set_totals


class DriverMetrics:
    """What the run has done: exact totals, carried on over resumes; the driver counts, this exports.

    Args:
        registry: where the series are.
        clock: of ages, which each scrape asks for anew: a driver that hangs is seen to.
        shown: whether scrapes see it at once; else from `show` on.
    """

    def __init__(self, registry: HasValues, clock: Clock | None = None, *, shown: bool = True) -> None:
        values = self._values = registry.values
        if not shown:
            values.withhold(each for each in vars(catalogue).values() if isinstance(each, Metric))
        self._produced = values.counter(catalogue.DRIVER_PRODUCED)
        self._trained = values.counter(catalogue.DRIVER_TRAINED)
        self._undone = values.counter(catalogue.DRIVER_UNDONE)
        self._dropped = {reason: values.counter(catalogue.DRIVER_DROPPED, reason) for reason in DropReason}
        self._in_flight = values.gauge(catalogue.DRIVER_IN_FLIGHT)
        self._voided = values.counter(catalogue.DRIVER_VOIDED)
        self._lost = values.counter(catalogue.DRIVER_LOST)
        self._episodes = values.counter(catalogue.DRIVER_EPISODES)
        self._env_steps = values.counter(catalogue.DRIVER_ENV_STEPS)
        self._updates = values.counter(catalogue.DRIVER_UPDATES)
        self._rate = values.gauge(catalogue.DRIVER_ENV_STEPS_RATE)
        self._version = values.gauge(catalogue.DRIVER_WEIGHTS_VERSION)
        self._term = values.gauge(catalogue.DRIVER_TERM)
        self._lag = values.gauge(catalogue.DRIVER_LAG)
        self._fragment_lag = values.histogram(catalogue.DRIVER_FRAGMENT_LAG)
        self._fragment_wait = values.histogram(catalogue.DRIVER_FRAGMENT_WAIT)
        self._oldest_fragment = values.gauge(catalogue.DRIVER_OLDEST_FRAGMENT)
        self._in_flight_fragments = values.gauge(catalogue.DRIVER_IN_FLIGHT_FRAGMENTS)
        self._capacity = values.gauge(catalogue.DRIVER_CAPACITY)
        self._queue = values.gauge(catalogue.DRIVER_QUEUE)
        self._starved = values.counter(catalogue.DRIVER_STARVED)
        self._wanted_actors = values.gauge(catalogue.DRIVER_WANTED_ACTORS)
        self._actors = {state: values.gauge(catalogue.DRIVER_ACTORS, state) for state in ActorState}
        self._restarts = values.counter(catalogue.DRIVER_RESTARTS)
        self._ranks = {state: values.gauge(catalogue.DRIVER_RANKS, state) for state in RankState}
        self._rank_restarts = values.counter(catalogue.DRIVER_RANK_RESTARTS)
        self._verified = values.counter(catalogue.DRIVER_VERIFIED)
        self._mismatches = {fault: values.counter(catalogue.DRIVER_MISMATCHES, fault) for fault in SyncFault}
        self._sync_failures = values.counter(catalogue.DRIVER_SYNC_FAILURES)
        self._retries = values.counter(catalogue.DRIVER_RETRIES)
        self._rollbacks = values.counter(catalogue.DRIVER_ROLLBACKS)
        self._recovery = {cause: values.histogram(catalogue.DRIVER_RECOVERY_SECONDS, cause) for cause in RecoveryCause}
        self._evaluation_return = values.gauge(catalogue.DRIVER_EVALUATION_RETURN)
        self._evaluation_episodes = values.gauge(catalogue.DRIVER_EVALUATION_EPISODES)
        self._checkpoint_seconds = values.histogram(catalogue.DRIVER_CHECKPOINT_SECONDS)
        self._checkpoints = {result: values.counter(catalogue.DRIVER_CHECKPOINTS, result) for result in SaveResult}
        self._stall = {verdict: values.gauge(catalogue.DRIVER_STALL, verdict) for verdict in Stall}
        self._stall_seconds = {verdict: values.counter(catalogue.DRIVER_STALL_SECONDS, verdict) for verdict in Stall}
        self._marks = {stage: values.counter(catalogue.DRIVER_STAGE_MARKS, stage) for stage in Stage}
        self._stages = {stage: values.gauge(catalogue.DRIVER_STAGE_STATE, stage) for stage in Stage}
        self._run = values.info(catalogue.DRIVER_RUN)
        self._labels = ClosedLabels()
        self._clock = clock or MonotonicClock()
        self._committed_ns = self._saved_ns = self._clock.now_ns()
        values.sample(values.gauge(catalogue.DRIVER_COMMIT_AGE), lambda: self._age_s(self._committed_ns))
        values.sample(values.gauge(catalogue.DRIVER_CHECKPOINT_AGE), lambda: self._age_s(self._saved_ns))

    def show(self) -> None:
        """The totals of earlier drivings are carried on: from now on a scrape may see them."""
        self._values.show()

    def _age_s(self, since_ns: int) -> float:
        return (self._clock.now_ns() - since_ns) / NS_PER_S

    def set_run(self, *, run: str, env: str, algo: str) -> None:
        """Say what is trained: one series, whatever the names."""
        with self._values.recording():
            self._run.set({"run": run, "env": env, "algo": algo})

    def set_accounts(
        self,
        *,
        produced: int,
        trained: int,
        undone: int,
        in_flight: int,
        dropped: Mapping[str, int],
        fragments_lost: int,
        voided: int,
        episodes: int,
    ) -> None:
        """Export the accounts of the run as they stand, all in the same scrape.

        Args:
            trained: transitions ever committed, undone ones included, so that a rollback takes nothing back.
            undone: those of them whose update was rolled back; they are in `dropped` as well.
            dropped: transitions by `DropReason`; unknown reasons are logged once and summed up as "other".

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            known = self._labels.as_other(dropped)
            set_totals(
                [
                    (self._produced, produced),
                    (self._trained, trained),
                    (self._undone, undone),
                    *((counter, known.get(reason, 0)) for reason, counter in self._dropped.items()),
                    (self._lost, fragments_lost),
                    (self._voided, voided),
                    (self._episodes, episodes),
                ]
            )
            self._in_flight.set(in_flight)

    def set_progress(
        self, *, updates: int, env_steps: int, version: int, term: int, policy_lag: int, per_second: float | None
    ) -> None:
        """Export how far the run is.

        Args:
            updates: ever committed, undone ones included.
            env_steps: environment steps of these.
            version: of the newest weights.
            term: of the learner.
            policy_lag: of the latest update, in updates.
            per_second: environment steps per second; None (no time has passed) keeps the last value.

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            before = self._updates.value
            set_totals([(self._updates, updates), (self._env_steps, env_steps)])
            if updates > before:
                self._committed_ns = self._clock.now_ns()
            self._version.set(version)
            self._term.set(term)
            self._lag.set(policy_lag)
            if per_second is not None:
                self._rate.set(per_second)

    def set_flow(self, *, in_flight: int, capacity: int, queued: int, starved: int) -> None:
        """Export how the flow from actors to the learner stands, where it is asynchronous.

        Args:
            in_flight: fragments told to actors whose update is not committed yet.
            capacity: how many these may be.
            queued: those of them that have arrived and wait for an update.
            starved: updates, in all, before which the learner had nothing to do.

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            set_totals([(self._starved, starved)])
            self._in_flight_fragments.set(in_flight)
            self._capacity.set(capacity)
            self._queue.set(queued)

    def set_oldest_fragment(self, *, age_s: float) -> None:
        """Export how long the oldest fragment without a fate has been there; 0 if there is none."""
        with self._values.recording():
            self._oldest_fragment.set(age_s)

    def observe_fragments(self, *, lags: Iterable[int], waits_s: Iterable[float]) -> None:
        """Take in the fragments of a committed update that were trained on.

        Args:
            lags: updates between the weights that acted and the update, of each where that is known.
            waits_s: seconds from its arrival to the commit, of each that arrived in this driving.
        """
        with self._values.recording():
            for lag in lags:
                self._fragment_lag.observe(lag)
            for wait_s in waits_s:
                self._fragment_wait.observe(wait_s)

    def set_actors(self, *, states: Mapping[ActorState, int], wanted: int, restarts: int) -> None:
        """Export where actors are in their life.

        Args:
            states: actors by state; one that is missing has none.
            wanted: how many there should be.
            restarts: processes lost, in all.

        Raises:
            ValueError: fewer restarts than before; then nothing is changed.
        """
        with self._values.recording():
            set_totals([(self._restarts, restarts)])
            self._wanted_actors.set(wanted)
            for state, gauge in self._actors.items():
                gauge.set(states.get(state, 0))

    def set_ranks(self, *, states: Mapping[str, int], restarts: int) -> None:
        """Export learner ranks by `RankState` (a state that is missing has none) and restarts in all.

        Raises:
            ValueError: fewer restarts than before; then nothing is changed.
        """
        with self._values.recording():
            known = self._labels.known_only(RankState, states)
            set_totals([(self._rank_restarts, restarts)])
            for state, gauge in self._ranks.items():
                gauge.set(known.get(state, 0))

    def set_sync(
        self, *, verified: int, mismatches: Mapping[str, int], failures: int, retries: int, rollbacks: int
    ) -> None:
        """Export what verification found, in all.

        Args:
            verified: updates committed with a state digest.
            mismatches: disputed attempts by `SyncFault`.
            failures: attempts that failed or ran past their deadline.
            retries: updates committed after an attempt at them was disputed or failed.
            rollbacks: of the learner.

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            known = self._labels.known_only(SyncFault, mismatches)
            set_totals(
                [
                    (self._verified, verified),
                    *((counter, known.get(fault, 0)) for fault, counter in self._mismatches.items()),
                    (self._sync_failures, failures),
                    (self._retries, retries),
                    (self._rollbacks, rollbacks),
                ]
            )

    def observe_recovery(self, *, seconds: float, cause: RecoveryCause) -> None:
        """Take in one recovery, once it is over."""
        with self._values.recording():
            self._recovery[cause].observe(seconds)

    def set_evaluation(self, *, return_mean: float, episodes: int) -> None:
        """Export the latest evaluation."""
        with self._values.recording():
            self._evaluation_return.set(return_mean)
            self._evaluation_episodes.set(episodes)

    def observe_checkpoint(self, *, seconds: float, result: SaveResult) -> None:
        """Take in one attempt to write a checkpoint."""
        with self._values.recording():
            self._checkpoint_seconds.observe(seconds)
            self._checkpoints[result].add(1)
            if result is SaveResult.OK:
                self._saved_ns = self._clock.now_ns()

    def set_stages(self, *, marks: Mapping[Stage, int], states: Mapping[Stage, int]) -> None:
        """Export how the ring stands.

        Args:
            marks: what each stage has done since this driver began; one that is missing keeps its total.
            states: 0 moving, 1 starved, 2 blocked, 3 stuck; one that is missing keeps its state.

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            set_totals([(self._marks[stage], total) for stage, total in marks.items()])
            for stage, state in states.items():
                self._stages[stage].set(state)

    def set_stall(self, verdict: Stall, *, seconds: float) -> None:
        """Export the verdict in force, and that `seconds` more have passed under it."""
        with self._values.recording():
            self._stall_seconds[verdict].add(seconds)
            for other, gauge in self._stall.items():
                gauge.set(float(other is verdict))


class ObjectStoreMetrics:
    """How full Ray's object stores are. Beside `DriverMetrics`: it is read by a thread of its own."""

    def __init__(self, registry: HasValues) -> None:
        values = self._values = registry.values
        self._used = values.gauge(catalogue.DRIVER_STORE_USED)
        self._capacity = values.gauge(catalogue.DRIVER_STORE_CAPACITY)

    def set(self, filling: tuple[int, int] | None) -> None:
        """Export bytes used and bytes held, all nodes together; None takes both away."""
        used, held = filling or (None, None)
        with self._values.recording():
            self._used.set(used)
            self._capacity.set(held)

    @property
    def ratio(self) -> float | None:
        """Used of held, as exported last; None if nobody knows."""
        used, held = self._used.value, self._capacity.value
        return None if used is None or not held else used / held
