"""Making a profile: which process, by which road, and where the result goes.

asked ──► process by name ──► can it answer? ──┬─ yes: py-spy or from inside, as it is allowed
                                               └─ no: py-spy, if it is on this machine; else an error
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, assert_never

from common.errors import ConfigError, UnreachableError
from common.profile_pages import MAX_RATE, MAX_SECONDS
from deploy.profiling import pyspy
from deploy.profiling.asking import Asked, ask
from deploy.profiling.flame import flame_svg
from deploy.profiling.folded import Folded
from deploy.profiling.pyspy import PySpyUnable
from deploy.profiling.words import memory_words, stacks_words
from deploy.watched import LiveProcess

Kind = Literal["flame", "stacks", "torch", "memory"]
Sampler = Literal["auto", "py-spy", "inside"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What is wanted.

    Attributes:
        process: `driver`, `actor-N`, `learner-N` or `rank-N`.
        kind: of profile.
        seconds: that it takes; stacks take none.
        rate: samples a second of a flame graph.
        idle: count threads that wait, too.
        sampler: who samples: py-spy from outside, the process itself, or whoever can.
    """

    process: str
    kind: Kind = "flame"
    seconds: float = 10.0
    rate: float = 100.0
    idle: bool = False
    sampler: Sampler = "auto"

    def __post_init__(self) -> None:
        for name, value, most in (("--seconds", self.seconds, MAX_SECONDS), ("--rate", self.rate, MAX_RATE)):
            if not 0 < value <= most:
                raise ConfigError(name, got=value, allowed=f"above 0, up to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile that was made.

    Attributes:
        data: to be written: an SVG, text, or a Chrome trace.
        notes: what whoever asked should know, a line each.
        text: whether `data` is meant to be read on a terminal.
    """

    data: bytes
    notes: tuple[str, ...] = ()
    text: bool = False


def named(name: str, listed: Sequence[LiveProcess]) -> LiveProcess:
    """The process of that name. Raises ConfigError, which lists the names there are."""
    wanted = name.replace("rank-", "learner-", 1) if name.startswith("rank-") else name
    for process in listed:
        if process.name == wanted or (process.role, wanted) == ("driver", "driver-0"):
            return process
    names = sorted((process.name for process in listed), key=_natural)
    raise ConfigError("no such process in the run", got=repr(name), allowed=", ".join(names) or "none is there yet")


def _natural(name: str) -> tuple[str, int]:
    role, _, number = name.partition("-")
    return role, int(number or 0)


def make_profile(request: ProfileRequest, process: LiveProcess, *, run: str) -> Profile:
    """Profile one live process; takes `request.seconds` and a moment.

    Raises:
        UserError: the process does not make such a profile, or the sampler that was asked for cannot.
        UnreachableError: it does not answer, or ended meanwhile.
    """
    reached = _reach(process)
    seconds, rate, idle = request.seconds, request.rate, request.idle
    match request.kind:
        case "flame":
            folded, notes = _outside_or_inside(
                request,
                process,
                reached,
                outside=lambda pid: pyspy.record(pid, seconds=seconds, rate=rate, idle=idle),
                inside=lambda asked: asked.flame(seconds=seconds, rate=rate, idle=idle),
            )
            title = f"{process.name} of {run}, {seconds:g} s, {'all threads' if idle else 'on the CPU'}"
            return Profile(data=flame_svg(folded, title=title).encode(), notes=(*notes, *_told(folded)))
        case "stacks":
            stacks, notes = _outside_or_inside(
                request, process, reached, outside=pyspy.dump, inside=lambda asked: asked.stacks()
            )
            return Profile(data=stacks_words(stacks).encode(), notes=notes, text=True)
        case "torch":
            trace = _answering(reached).trace(seconds=seconds)
            return Profile(data=trace, notes=("open it at https://ui.perfetto.dev or chrome://tracing",))
        case "memory":
            held = _answering(reached).memory(seconds=seconds)
            return Profile(data=memory_words(held, process.name).encode(), text=True)
        case other:
            assert_never(other)


def _reach(process: LiveProcess) -> Asked | UnreachableError:
    """The process, or why it does not answer: one that hangs can still be seen from outside."""
    try:
        return ask(process)
    except UnreachableError as error:
        return error


def _outside_or_inside(
    request: ProfileRequest,
    process: LiveProcess,
    reached: Asked | UnreachableError,
    *,
    outside: Callable[[int], T],
    inside: Callable[[Asked], T],
) -> tuple[T, tuple[str, ...]]:
    """By py-spy where that can be, else by the process itself, with a note that says why."""
    if request.sampler == "inside":
        return inside(_answering(reached)), ()
    here = reached.here if isinstance(reached, Asked) else process.host == platform.node()
    try:
        if not (here and process.pid):
            raise PySpyUnable(f"{process.name} runs on {process.host or 'another machine'}, not here")
        return outside(process.pid), ()
    except PySpyUnable as error:
        why = str(error)
    if request.sampler == "py-spy":
        raise ConfigError(
            "--sampler py-spy cannot be had", got=why, allowed="auto, inside", fix="leave it out to sample from inside"
        )
    if isinstance(reached, UnreachableError):
        raise UnreachableError(reached.what, got=f"{reached.got or 'silence'}; from outside: {why}", fix=reached.fix)
    return inside(reached), (f"sampled from inside: {why}",)


def _answering(reached: Asked | UnreachableError) -> Asked:
    if isinstance(reached, UnreachableError):
        raise reached
    return reached


def _told(folded: Folded) -> tuple[str, ...]:
    if not folded.total:
        return (*folded.remarks, "nothing was seen: every thread was waiting; --idle counts those that wait")
    hottest = tuple(f"{share:6.1%}  {name}" for name, share in folded.hottest())
    return (*folded.remarks, f"{folded.words(folded.total)}; most of it in:", *hottest)
