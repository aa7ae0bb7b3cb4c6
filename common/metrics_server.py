"""One small HTTP server per process, for Prometheus.

    /metrics    the registry as text, gzip if asked
    /targets    Prometheus HTTP service discovery: every process of the run (driver only)
    /livez      200 or 503, and why; /readyz, /startupz and /healthz likewise (common.probes)
    ...         pages of its caller's, as common.profile_pages

With a token, whoever asks for anything but `PROBES` has to bear it: 401 otherwise.

loop     consumes       produces             waits for        unblocked by
accept   connections    a thread for each    a connection     close()
request  one request    one response         the client       5 s without a byte, or close()

What raises while a request is answered costs that request a 500 and the log one record; it never reaches the run.
"""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Protocol

from common.clock import Deadline, MonotonicClock, thread_cpu_ns
from common.metrics_http import HttpServer, PortsTakenError, Response, accept, bind
from common.metrics_token import MetricsToken
from common.ports import PortRange
from common.probes import Answering, Probe, Prober

CLOSE_TIMEOUT_S = 5.0
PROBES = frozenset(Probe)  # a kubelet bears no token
ANY_PORT = PortRange(first=0, last=0)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A process to scrape.

    Attributes:
        role: what it is.
        index: which of them.
        lease: token of this process start, so that a restarted actor is another instance.
        address: "host:port", as Prometheus reaches it.
        run: the run's name.
        host: name of the machine (in Kubernetes the pod) that it runs on.
        pid: its process id there.
    """

    role: Literal["driver", "actor", "learner"]
    index: int
    lease: str
    address: str
    run: str
    host: str
    pid: int

    def to_json(self) -> dict[str, Any]:
        """One entry of Prometheus HTTP service discovery; `__meta_` labels are for who asks, no series has them."""
        labels = {
            "instance": f"{self.role}-{self.index}-{self.lease}",
            "role": self.role,
            "index": str(self.index),
            "run": self.run,
            "__meta_truestep_host": self.host,
            "__meta_truestep_pid": str(self.pid),
        }
        return {"targets": [self.address], "labels": labels}


class Scrapable(Protocol):
    """What the server serves: a registry of metrics."""

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text of every series, and its content type."""
        ...

    def account(self, cpu_ns: int) -> None:
        """Take note of the CPU time that a request has cost."""
        ...


UNAUTHORISED = Response(status=HTTPStatus.UNAUTHORIZED, body=b"this process wants the bearer token of metrics\n")


class Pages(Protocol):
    """What a server serves besides; the CPU time of it is no cost of metrics."""

    @property
    def paths(self) -> Sequence[str]:
        """Of all pages."""
        ...

    def answer(self, path: str, query: str) -> Response:
        """The page at one of `paths`; called from a thread of the request's own."""
        ...

    def close(self) -> None:
        """The server is being closed: end what is under way."""
        ...


class MetricsServer:
    """A running server; `serve` makes it. A context manager that closes."""

    def __init__(self, http: HttpServer, wake: tuple[socket.socket, socket.socket], thread: threading.Thread) -> None:
        self._http = http
        self._wake = wake
        self._thread = thread
        self.port = int(http.server_address[1])

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server: on return the port is free and no thread of it is left; says so in the log otherwise.

        Requests under way are cut. May be called again.
        """
        if self._wake[0].fileno() < 0:
            return
        deadline = Deadline(MonotonicClock(), CLOSE_TIMEOUT_S)
        self._http.answers.close()
        self._wake[0].send(b"x")
        self._thread.join(deadline.remaining_s())
        self._http.server_close()
        for thread in [self._thread, *self._http.cut_requests()]:
            thread.join(deadline.remaining_s())
            if thread.is_alive():
                logger.warning("thread %s did not end within %s s of closing", thread.name, CLOSE_TIMEOUT_S)
        for end in self._wake:
            end.close()


def serve(
    registry: Scrapable,
    *,
    host: str = "127.0.0.1",
    ports: PortRange,
    targets: Callable[[], list[Target]] | None = None,
    prober: Prober | None = None,
    pages: Pages | None = None,
    token: MetricsToken | None = None,
    elsewhere: bool = False,
    who: str,
) -> MetricsServer:
    """Serve `registry` on the first free port of `ports`; listening on return.

    Args:
        registry: rendered anew by each scrape.
        host: address to listen on. The default is reachable from this machine only.
        ports: where.
        targets: live processes at the moment of the call, from any thread; None serves no `/targets`.
        prober: answers probes, from any thread; None says yes to all of them.
        pages: served besides.
        token: what a request has to bear, but for `PROBES`; None asks for none.
        elsewhere: where every port of `ports` is taken, listen on any free one and say so in the log: discovery tells
            of it, and nobody need end a run for it.
        who: whose metrics they are, for errors, the log and thread names.

    Raises:
        OutputError: no port of `ports` can be had; names the port, and its holder where that can be seen.
    """
    answers = _Answers(registry, targets, prober or Answering(), pages, token, who)
    try:
        http = bind(host, ports, answers, who)
    except PortsTakenError as error:
        if not elsewhere:
            raise
        http = bind(host, ANY_PORT, answers, who)
        logger.warning("%s; serving on port %d instead", error, http.server_port)
    wake = socket.socketpair()
    thread = threading.Thread(target=accept, args=(http, wake[1]), name=f"metrics of {who}", daemon=True)
    server = MetricsServer(http, wake, thread)
    thread.start()
    return server


class _Answers:
    """Request to response; holds no connection."""

    def __init__(
        self,
        registry: Scrapable,
        targets: Callable[[], list[Target]] | None,
        prober: Prober,
        pages: Pages | None,
        token: MetricsToken | None,
        who: str,
    ) -> None:
        self._registry = registry
        self._targets = targets
        self._prober = prober
        self._pages = pages
        self._token = token
        self._who = who

    def close(self) -> None:
        """End answers that take their time."""
        if self._pages is not None:
            self._pages.close()

    def answer(self, path: str, headers: Message) -> Response:
        """Never raises. The CPU time it took is the registry's to account for, but for that of pages."""
        start_ns = thread_cpu_ns()
        name, _, query = path.partition("?")
        try:
            if not self._admitted(name, headers):
                return UNAUTHORISED
            if self._pages is not None and name in self._pages.paths:
                response = self._pages.answer(name, query)
                start_ns = thread_cpu_ns()
                return response
            return self._route(name, headers)
        except Exception:
            logger.exception("metrics of %s: %s could not be answered", self._who, path)
            return Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=b"failed; the log of the process says why\n")
        finally:
            self._registry.account(thread_cpu_ns() - start_ns)

    def _admitted(self, path: str, headers: Message) -> bool:
        if self._token is None or path in PROBES:
            return True
        return self._token.admits(headers.get("Authorization", ""))

    def _route(self, path: str, headers: Message) -> Response:
        if path == "/metrics":
            return self._metrics(headers)
        if path in PROBES:
            return self._probe(Probe(path))
        if path == "/targets" and self._targets is not None:
            body = json.dumps([target.to_json() for target in self._targets()]).encode()
            return Response(status=HTTPStatus.OK, body=body, content_type="application/json")
        known = ["/metrics", *([] if self._targets is None else ["/targets"]), *Probe]
        known += [] if self._pages is None else self._pages.paths
        return Response(status=HTTPStatus.NOT_FOUND, body=f"{self._who} serves {' '.join(known)}\n".encode())

    def _metrics(self, headers: Message) -> Response:
        text, content_type = self._registry.render(headers.get("Accept", ""))
        if _accepts_gzip(headers.get("Accept-Encoding", "")):
            body = gzip.compress(text, compresslevel=1, mtime=0)  # 1: a third of the CPU time of 9, 10 % more bytes
            return Response(status=HTTPStatus.OK, body=body, content_type=content_type, encoding="gzip")
        return Response(status=HTTPStatus.OK, body=text, content_type=content_type)

    def _probe(self, probe: Probe) -> Response:
        answer = self._prober.ask(probe)
        status = HTTPStatus.OK if answer.yes else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status=status, body=f"{answer.why}\n".encode())


def _accepts_gzip(header: str) -> bool:
    codings = [coding.replace(" ", "").lower() for coding in header.split(",")]
    return any(coding.partition(";")[0] == "gzip" and not coding.endswith(";q=0") for coding in codings)
