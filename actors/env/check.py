"""`truestep check`: finds out, in children and under deadlines, what an environment keeps of what it promises.

    construct ──► plain, play, play at another time, restores ──► speeds
    if it fails nothing else is tried

Whatever the environment does in a child (raise, hang, exit, crash) is the finding of that probe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from actors.env.check_facts import CheckReport, ConstructFacts, SpeedFacts, SpeedFailure
from actors.env.child import Report, run_in_child
from actors.env.probes import Check, probe_construct, probe_plain, probe_play, probe_restores, probe_speed
from common.errors import ConfigError, TruestepError

SHIFT_S = 123_456_789.5  # some four years
SPEED_LANES = (1, 8, 32)
ASYNC_LANES = 8
SPEED_S = 0.3

Probe = Callable[[Check, Report], None]


def gather(check: Check, tell: Callable[[str], None]) -> CheckReport:
    """Run every probe. `tell` is given in words what is being done. Raises `ConfigError` for what cannot be checked."""
    check.config.validate()
    tell("constructing")
    construct = run_probe(check, probe_construct)
    if not isinstance(construct, ConstructFacts):
        return CheckReport(environment=check.config.id, construct=construct)
    tell("seeds and spaces")
    plain = run_probe(check, probe_plain) if construct.plain else None
    tell(f"random play, {check.ticks} ticks of {check.lanes} lanes")
    play = run_probe(check, partial(probe_play, shift_s=0.0))
    shifted = restores = None
    speeds: tuple[SpeedFacts | SpeedFailure, ...] = ()
    if not isinstance(play, TruestepError):
        tell("the same at another time of day")
        shifted = run_probe(check, partial(probe_play, shift_s=SHIFT_S))
        tell("snapshots")
        restores = run_probe(check, probe_restores)
        tell("speed")
        speeds = tuple(_speed(check, mode, lanes) for mode, lanes in _ways(construct))
    return CheckReport(
        environment=check.config.id,
        construct=construct,
        plain=plain,
        play=play,
        shifted=shifted,
        restores=restores,
        speeds=speeds,
    )


def _ways(construct: ConstructFacts) -> list[tuple[Literal["own", "sync", "async"], int]]:
    ways: list[tuple[Literal["own", "sync", "async"], int]] = []
    if construct.plain:
        ways += [("sync", lanes) for lanes in SPEED_LANES]
        ways += [("async", ASYNC_LANES)]
    if construct.own:
        ways += [("own", lanes) for lanes in SPEED_LANES]
    return ways


def _speed(check: Check, mode: Literal["own", "sync", "async"], lanes: int) -> SpeedFacts | SpeedFailure:
    found = run_probe(check, partial(probe_speed, vectorised=mode, lanes=lanes, seconds=SPEED_S))
    if isinstance(found, TruestepError):
        return SpeedFailure(vectorised=mode, lanes=lanes, error=found)
    assert isinstance(found, SpeedFacts)
    return found


def run_probe(check: Check, probe: Probe) -> Any:
    """The one fact that a probe reports, or the error in which it ended."""
    who = f"environment {check.config.id!r}"
    outcome = run_in_child(partial(probe, check), who=who, clock=check.clock)
    if isinstance(outcome.error, ConfigError):
        raise outcome.error
    if outcome.error is not None:
        return outcome.error
    (fact,) = outcome.facts
    return fact
