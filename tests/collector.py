"""A collector of spans: takes OTLP over HTTP as any other does, and can be made to misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, kw_only=True)
class Got:
    """A span as it arrived; ids in hexadecimal, times in nanoseconds since 1970."""

    name: str
    trace: str
    span: str
    parent: str
    links: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failure: str
    resource: dict[str, Any]

    @property
    def ids(self) -> tuple[str, str]:
        return self.trace, self.span

    @property
    def instance(self) -> str:
        return str(self.resource["service.instance.id"])


class Collector:
    """Listens on a free port of the loopback; `spans` is what has arrived."""

    def __init__(self, *, status: int = 200, hangs: bool = False) -> None:
        self.spans: list[Got] = []
        self.paths: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self.posts = 0
        self._status = status
        self._hangs = hangs
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[Got]:
        """Spans of that name."""
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        """A request's spans."""
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = _plain(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_got(span, resource) for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.posts += 1
                collector.paths.add(self.path)
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector._hangs:
                    collector._over.wait()
                    return
                if collector._status == 200:
                    collector.take(body)
                self.send_response(collector._status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                return None

        return Handler

    @contextmanager
    def listening(self) -> Iterator[Collector]:
        """While the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def collecting(*, status: int = 200, hangs: bool = False) -> AbstractContextManager[Collector]:
    """A collector while the block runs."""
    return Collector(status=status, hangs=hangs).listening()


class Absent:
    """Nobody listens there."""

    posts = 0
    spans: tuple[Got, ...] = ()

    def __enter__(self) -> Absent:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        return None


MISBEHAVING: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "absent": Absent,
    "refusing": lambda: collecting(status=500),
    "busy": lambda: collecting(status=503),
    "hanging": lambda: collecting(hangs=True),
}


def _got(span: Any, resource: dict[str, Any]) -> Got:
    return Got(
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_plain(span.attributes),
        failure=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
        resource=resource,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
