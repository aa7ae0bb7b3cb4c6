"""The pages at which a live process shows what it is doing; served beside `/metrics`, to the same readers.

    /profile            which process this is, and what it can show
    /profile/stacks     every thread, now
    /profile/flame      samples of every thread            ?seconds=10&rate=100&idle=0
    /profile/memory     what is allocated and kept         ?seconds=10
    /profile/torch      a trace of a learner's updates     ?seconds=10      learner ranks only

All answers are JSON; one that is not given is {"error": why}. Looking costs the run something, so there is one profile
at a time in a process, of at most `MAX_SECONDS`, and closing the server ends it. Nothing is written to disk, nothing
can be changed: who may read metrics may read names of functions, and no more (no values, no source beyond one line).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

from common.allocations import allocations
from common.clock import Clock
from common.errors import ConfigError, DeadlineError, TruestepError
from common.metrics_http import Response
from common.process_identity import ProcessIdentity
from common.profiling import sample, stacks

INDEX = "/profile"
MAX_SECONDS = 300.0
MAX_RATE = 1000.0
SECONDS = 10.0
RATE = 100.0
JSON = "application/json"
logger = logging.getLogger(__name__)


class Tracer(Protocol):
    """Traces the updates of a learner rank."""

    def trace(self, seconds: float, *, stop: threading.Event) -> bytes:
        """The updates of the next seconds as Chrome trace JSON; called from a thread of its own.

        Raises:
            DeadlineError: there were none.
        """
        ...


class ProfilePages:
    """Answers requests for profiles of this process, from any thread; `close` ends the one that is being made.

    Args:
        who: whose process it is, for errors and the log.
        clock: of samples.
        tracer: of the learner rank in this process, if there is one.
    """

    def __init__(self, who: str, clock: Clock, *, tracer: Tracer | None = None) -> None:
        self._who = who
        self._clock = clock
        self._tracer = tracer
        self._busy = threading.Lock()
        self._stop = threading.Event()
        kinds = ("stacks", "flame", "memory") if tracer is None else ("stacks", "flame", "memory", "torch")
        self.paths = (INDEX, *(f"{INDEX}/{kind}" for kind in kinds))

    def close(self) -> None:
        """End the profile that is being made; later requests are refused."""
        self._stop.set()

    def answer(self, path: str, query: str) -> Response:
        """The page at `path`, one of `paths`. Never raises."""
        try:
            if path == INDEX:
                return _json({"who": self._who, "process": asdict(ProcessIdentity.current()), "kinds": self._kinds()})
            return self._profile(path.removeprefix(f"{INDEX}/"), dict(parse_qsl(query)))
        except ConfigError as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        except DeadlineError as error:
            return _refusal(HTTPStatus.GATEWAY_TIMEOUT, str(error))
        except TruestepError as error:
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception as error:
            logger.exception("profile of %s: %s could not be made", self._who, path)
            words = f"{self._who} could not be profiled: {type(error).__name__}: {error}; see its log"
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, words)

    def _kinds(self) -> list[str]:
        return [path.removeprefix(f"{INDEX}/") for path in self.paths[1:]]

    def _profile(self, kind: str, asked: Mapping[str, str]) -> Response:
        if kind == "stacks":  # takes no time, so it is never refused: it tells what a busy process is at
            return _json({"threads": [asdict(stack) for stack in stacks()]})
        seconds = _number(asked, "seconds", SECONDS, MAX_SECONDS)
        if not self._busy.acquire(blocking=False):
            return _refusal(HTTPStatus.CONFLICT, f"{self._who} is being profiled already: one at a time")
        try:
            response = self._made(kind, seconds, asked)
        finally:
            self._busy.release()
        if self._stop.is_set():
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._who} ended while it was profiled")
        return response

    def _made(self, kind: str, seconds: float, asked: Mapping[str, str]) -> Response:
        match kind:
            case "flame":
                return self._flame(seconds, asked)
            case "memory":
                held = allocations(seconds, stop=self._stop)
                if held is None:
                    return _refusal(HTTPStatus.CONFLICT, f"{self._who} traces its allocations already (tracemalloc)")
                return _json({"seconds": seconds, **asdict(held)})
            case _:
                assert self._tracer is not None, kind
                body = self._tracer.trace(seconds, stop=self._stop)
                return Response(status=HTTPStatus.OK, body=body, content_type=JSON)

    def _flame(self, seconds: float, asked: Mapping[str, str]) -> Response:
        rate = _number(asked, "rate", RATE, MAX_RATE)
        seen = sample(seconds, rate=rate, idle=asked.get("idle") == "1", clock=self._clock, stop=self._stop)
        counts = [[list(stack), count] for stack, count in seen.counts.items()]
        return _json(
            {
                "seconds": seen.seconds,
                "rate": seen.rate,
                "taken": seen.taken,
                "missed": seen.missed,
                "cpu_seconds": seen.cpu_seconds,
                "unit": seen.unit,
                "counts": counts,
            }
        )


def _number(asked: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = asked.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= most:
        raise ConfigError(f"profile: {name}", got=text, allowed=f"above 0, up to {most:g}")
    return value


def _json(what: Mapping[str, Any]) -> Response:
    return Response(status=HTTPStatus.OK, body=json.dumps(what).encode(), content_type=JSON)


def _refusal(status: HTTPStatus, why: str) -> Response:
    return Response(status=status, body=json.dumps({"error": why}).encode(), content_type=JSON)
