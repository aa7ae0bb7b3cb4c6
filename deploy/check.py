"""`truestep check`: what was found out about an environment, judged, and said.

    actors.env.check.gather ──► CheckReport ──► judge ──► lines, speeds, a recommendation ──► table or JSON

`pass` and `note` let a run begin; a note is what a run will record or what costs something. `FAIL` is a contract that
is broken: training would stop there, or could not be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from actors.env.check_facts import CheckReport, ConstructFacts, PlainFacts, PlayFacts, SpeedFacts, SpeedFailure
from actors.env.lanes import Verdict
from actors.env.probes import first_difference
from common.errors import TruestepError
from common.specs import ArraySpec

GOOD_ENOUGH = 0.9  # of the highest speed: fewer lanes give the same, with shorter updates
ASYNC_GAIN = 1.2  # children are worth their processes from here on

Word = Literal["pass", "note", "FAIL", "–"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One judgement.

    Attributes:
        name: of the promise.
        verdict: the word for it; `–` was not reached.
        found: figures and words.
        fix: what to do; empty where nothing is to be done.
        detail: the user's own traceback, if one belongs to it.
    """

    name: str
    verdict: Word
    found: str
    fix: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All lines, and how to hold the lanes; `recommended` is None where nothing could be timed."""

    environment: str
    lines: tuple[Line, ...]
    speeds: tuple[SpeedFacts | SpeedFailure, ...]
    recommended: SpeedFacts | None

    @property
    def passed(self) -> bool:
        """No contract is broken."""
        return all(line.verdict != "FAIL" for line in self.lines)

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        best = self.recommended
        return {
            "environment": self.environment,
            "passed": self.passed,
            "lines": [{name: getattr(line, name) for name in Line.__slots__} for line in self.lines],
            "speeds": [_plain_speed(speed) for speed in self.speeds],
            "recommended": None if best is None else {"vectorise": best.vectorised, "lanes": best.lanes},
        }


def judge(report: CheckReport, *, voids_nonfinite: bool) -> Judgement:
    """The verdicts. `voids_nonfinite`: the configuration breaks such episodes instead of stopping the run."""
    lines = [
        *_construct(report.construct),
        *_plain(report.plain, contract_broken=isinstance(report.play, TruestepError)),
        *_play(report.play, voids_nonfinite),
        _clock(report.play, report.shifted),
        _restores(report.restores),
        *_speed_failures(report),
    ]
    return Judgement(
        environment=report.environment,
        lines=tuple(_without_name(line, report.environment) for line in lines),
        speeds=report.speeds,
        recommended=recommend(report.speeds),
    )


def recommend(speeds: tuple[SpeedFacts | SpeedFailure, ...]) -> SpeedFacts | None:
    """The fewest lanes that come near the highest speed; children only where they are clearly faster."""
    timed = [speed for speed in speeds if isinstance(speed, SpeedFacts)]
    here = [speed for speed in timed if speed.vectorised != "async"] or timed
    if not here:
        return None
    fastest = max(timed, key=lambda speed: speed.steps_per_s)
    best_here = max(here, key=lambda speed: speed.steps_per_s)
    if fastest.vectorised == "async" and fastest.steps_per_s >= ASYNC_GAIN * best_here.steps_per_s:
        return fastest
    near = [speed for speed in here if speed.steps_per_s >= GOOD_ENOUGH * best_here.steps_per_s]
    return min(near, key=lambda speed: (speed.lanes, -speed.steps_per_s))


def _construct(found: ConstructFacts | TruestepError) -> Iterator[Line]:
    if isinstance(found, TruestepError):
        yield _failed("construct", found)
        return
    forms = [name for name, has in (("single", found.plain), ("own vector form", found.own)) if has]
    yield Line(name="construct", verdict="pass", found=f"{found.construct_s * 1e3:.0f} ms; {', '.join(forms)}")
    observation = ", ".join(f"{name} {_short(part)}" for name, part in found.observation)
    yield Line(name="spaces", verdict="pass", found=f"{observation}; action {_short(found.action)}")
    if found.children_left:
        yield Line(
            name="close",
            verdict="FAIL",
            found=f"{found.children_left} processes were left running",
            fix="end in `close` what was started in `__init__`: evaluations close environments while the run goes on",
        )
    else:
        yield Line(name="close", verdict="pass", found="no process left")


def _plain(found: PlainFacts | TruestepError | None, *, contract_broken: bool) -> Iterator[Line]:
    if isinstance(found, PlainFacts):
        yield _seed(found)
        yield from _habits(found)
    elif found is None or contract_broken:  # the same flaw is told of the play
        yield _not_reached("seed")
    else:
        yield _failed("seed", found)


def _seed(found: PlainFacts) -> Line:
    fix = "draw from self.np_random alone, and call super().reset(seed=seed) in every reset"
    if not found.fresh_alike:
        words = "ignores its seed: two fresh environments reset with one seed begin differently"
        return Line(name="seed", verdict="FAIL", found=words, fix=fix)
    if not found.again_alike:
        words = "ignores its seed from the second reset on: the same seed begins another episode"
        return Line(name="seed", verdict="FAIL", found=words, fix=fix)
    if not found.seeds_matter:
        words = "every seed begins the same episode"
        return Line(name="seed", verdict="note", found=words, fix="all lanes see one beginning, if that is meant")
    if not found.unseeded_follows:
        words = "a reset without a seed, after one with a seed, is random"
        return Line(name="seed", verdict="note", found=words, fix="none needed here: every reset of a run has a seed")
    return Line(name="seed", verdict="pass", found="one seed, one beginning; another seed, another")


def _habits(found: PlainFacts) -> Iterator[Line]:
    if not found.action_samples_repeat:
        fix = "the action space must draw from its own generator"
        yield Line(name="action samples", verdict="FAIL", found="a seeded action space samples differently", fix=fix)
    if found.outside_space:
        yield Line(
            name="declared bounds",
            verdict="note",
            found=f"not in its own space: {found.outside_space}",
            fix="allowed for floats, whose bounds are advice; declare the true ones if anything relies on them",
        )
    if found.reuses_buffers:
        words = "an observation that was returned changes with the next step"
        yield Line(name="buffers", verdict="note", found=words, fix="none needed: truestep copies")


def _play(found: PlayFacts | TruestepError | None, voids_nonfinite: bool) -> Iterator[Line]:
    if found is None:
        yield _not_reached("contract")
        return
    if isinstance(found, TruestepError):
        yield _failed("contract", found)
        return
    steps = f"{found.ticks * found.lanes:,} random steps, {found.episodes:,} episodes ended"
    yield Line(name="contract", verdict="pass", found=steps)
    yield _finite(found, voids_nonfinite)
    if found.difference:
        words = f"two equal plays differ: {found.difference}"
        fix = "look for draws outside self.np_random, for state of classes and modules, for threads"
        yield Line(name="determinism", verdict="FAIL", found=words, fix=fix)
    else:
        yield Line(name="determinism", verdict="pass", found="two equal plays agree in every bit")
    yield _global_generators(found)


def _finite(found: PlayFacts, voids_nonfinite: bool) -> Line:
    if not found.broken:
        return Line(name="finite values", verdict="pass", found="no NaN, no infinity, no reward beyond float32")
    return Line(
        name="finite values",
        verdict="note" if voids_nonfinite else "FAIL",
        found=f"broken episodes: {found.broken}; the first: {found.first_broken}",
        fix="mend the environment, or set env.on_nonfinite to drop_episode or end_episode",
    )


def _global_generators(found: PlayFacts) -> Line:
    name, names = "process-wide randomness", " and ".join(found.drawn)
    if not found.drawn:
        return Line(name=name, verdict="pass", found="none is drawn")
    if not found.depends_on_drawn:
        return Line(name=name, verdict="note", found=f"draws from {names}; no tick depended on it")
    return Line(
        name=name,
        verdict="note",
        found=f"draws from {names}; episodes depend on it",
        fix="draw from self.np_random: process-wide generators are seeded once for each actor, and its lanes take "
        "turns at them (env.vectorise=async gives each lane its own)",
    )


def _clock(play: PlayFacts | TruestepError | None, shifted: PlayFacts | TruestepError | None) -> Line:
    name = "wall clock"
    if isinstance(shifted, TruestepError):
        return _failed(name, shifted)
    if not isinstance(play, PlayFacts) or shifted is None or play.difference:
        return _not_reached(name)
    difference = first_difference(play.digests, shifted.digests)
    if difference:
        fix = "let time be a count of steps: a run at another hour is another run"
        return Line(name=name, verdict="FAIL", found=f"at another time of day differs {difference}", fix=fix)
    if play.clock_reads:
        return Line(name=name, verdict="note", found=f"read {play.clock_reads:,} times; no tick depended on it")
    return Line(name=name, verdict="pass", found="not read by Python code")


def _restores(found: Verdict | TruestepError | None) -> Line:
    if found is None:
        return _not_reached("restores")
    if isinstance(found, TruestepError):
        return _failed("restores", found)
    match found.restores:
        case "state":
            return Line(name="restores", verdict="pass", found="state: put on a fresh environment, bit for bit")
        case "replay":
            words = f"replay: a resume does each lane's current episode again ({found.reason})"
            return Line(name="restores", verdict="pass", found=words)
        case "no":
            fix = "keep state in attributes, or let it follow from seed and actions; else a resume begins new episodes"
            return Line(name="restores", verdict="note", found=f"no: {found.reason}", fix=fix)


def _speed_failures(report: CheckReport) -> Iterator[Line]:
    for speed in report.speeds:
        if isinstance(speed, SpeedFailure):
            yield _failed(f"{speed.vectorised}, {speed.lanes} lanes", speed.error)


def _failed(name: str, error: TruestepError) -> Line:
    got = f"; got {error.got}" if error.got else ""
    allowed = f"; allowed: {error.allowed}" if error.allowed else ""
    return Line(name=name, verdict="FAIL", found=f"{error.what}{got}{allowed}", fix=error.fix, detail=error.detail)


def _without_name(line: Line, environment: str) -> Line:
    """The table is about one environment: its name and ours need not be in every line."""
    name = f"environment {environment!r}"
    found = line.found.replace(f"{name}, the check, ", "").replace(f"{name}, the check: ", "").replace(f"{name}: ", "")
    return replace(line, found=found)


def _not_reached(name: str) -> Line:
    return Line(name=name, verdict="–", found="not reached")


def _short(spec: ArraySpec) -> str:
    if spec.kind == "discrete":
        return f"Discrete({spec.nvec[0]})"
    return f"{spec.kind} {spec.shape} {spec.dtype}"


def _plain_speed(speed: SpeedFacts | SpeedFailure) -> dict[str, Any]:
    measured = speed.steps_per_s if isinstance(speed, SpeedFacts) else None
    return {"vectorise": speed.vectorised, "lanes": speed.lanes, "steps_per_s": measured}
