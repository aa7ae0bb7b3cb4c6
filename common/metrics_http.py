"""HTTP for metrics: sockets, threads and limits. What is answered is the caller's.

At most `MAX_REQUESTS` are under way at once, more are refused; one without a byte for `REQUEST_TIMEOUT_S` ends.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import socketserver
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from common.clock import MonotonicClock
from common.errors import OutputError
from common.ports import PortRange, port_holder

MAX_REQUESTS = 32  # at once; Prometheus has one, a few people look on
REQUEST_TIMEOUT_S = 5.0  # without a byte from or to the client; Prometheus gives a scrape 10 s
OUT_OF_FILES_PAUSE_S = 0.1
PLAIN = "text/plain; charset=utf-8"
ADVICE = {
    errno.EACCES: "use a port above 1023 or give this user the right to it",
    errno.EADDRNOTAVAIL: "use an address of this host, 0.0.0.0 for all of them",
}
logger = logging.getLogger(__name__)


class PortsTakenError(OutputError):
    """Others listen on every port that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN
    encoding: str = ""


class Answers(Protocol):
    """Request to response."""

    def answer(self, path: str, headers: Message) -> Response:
        """Of a GET; called from a thread of the request's own. Never raises."""
        ...

    def close(self) -> None:
        """End answers that take their time."""
        ...


class HttpServer(ThreadingHTTPServer):
    """Listens; gives each request a named daemon thread that `cut_requests` can end."""

    allow_reuse_address = True  # listen again while connections of the last run linger in TIME_WAIT
    allow_reuse_port = False  # True, a default of newer Pythons, lets two live servers share a port
    daemon_threads = True
    request_queue_size = 2 * MAX_REQUESTS  # the default of 5 makes a crowd wait a second for the retry of its handshake
    timeout = 0  # handle_request never waits: _accept does

    def __init__(self, address: tuple[str, int], answers: Answers, who: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.answers = answers
        self._who = who
        self._requests: dict[threading.Thread, Any] = {}
        super().__init__(address, _Handler)
        self.socket.setblocking(False)  # a client that is gone before it is accepted must not block the thread

    def server_bind(self) -> None:
        """As TCPServer does: HTTPServer also asks the name service for our name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._requests) >= MAX_REQUESTS:
            logger.warning("metrics of %s: more than %d requests at once, one refused", self._who, MAX_REQUESTS)
            self.shutdown_request(request)
            return
        arguments = (request, client_address)
        name = f"metrics of {self._who}, request"
        thread = threading.Thread(target=self._run_request, args=arguments, name=name, daemon=True)
        self._requests[thread] = request
        try:
            thread.start()
        except RuntimeError:  # no more threads; handle_error logs it
            del self._requests[thread]
            raise

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                MonotonicClock().sleep(OUT_OF_FILES_PAUSE_S)  # it stays readable: do not take a core for that
            raise

    def _run_request(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            del self._requests[threading.current_thread()]

    def cut_requests(self) -> list[threading.Thread]:
        """Cut the connections of requests under way; returns their threads, which end soon."""
        requests = dict(self._requests)
        for request in requests.values():
            with suppress(OSError):  # it has ended meanwhile
                request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it; closing here would not wake it
        return list(requests)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # the client went away, or close() cut it
            logger.debug("metrics of %s: connection of %s lost: %s", self._who, client_address, error)
        else:
            logger.error("metrics of %s: request of %s failed", self._who, client_address, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request, writes one response, closes (HTTP/1.0)."""

    server: HttpServer
    server_version = "truestep"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        response = self.server.answers.answer(self.path, self.headers)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        if response.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if response.encoding:
            self.send_header("Content-Encoding", response.encoding)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


def accept(http: HttpServer, wake: socket.socket) -> None:
    """Take requests until `wake` can be read."""
    with selectors.DefaultSelector() as selector:
        selector.register(http, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while all(key.fileobj is not wake for key, _ in selector.select()):
            http.handle_request()


def bind(host: str, ports: PortRange, answers: Answers, who: str) -> HttpServer:
    """A server that listens on the first free port of `ports`.

    Raises:
        PortsTakenError: there is none; says who holds it where that can be seen.
        OutputError: the address or port cannot be used.
    """
    for port in range(ports.first, ports.last + 1):
        try:
            return HttpServer((host, port), answers, who)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OutputError(
                    f"metrics of {who}: cannot listen on {host} port {port}",
                    got=error.strerror or error,
                    fix=ADVICE.get(error.errno or 0, "check the host and port for metrics"),
                ) from error
    several = ports.first != ports.last
    raise PortsTakenError(
        f"metrics of {who}: {'every port' if several else 'port'} {ports} of {host} is taken",
        got=None if several else port_holder(ports.first),
        fix='end the process that listens there, or use "0" (any free port) or a range with room, as "9100-9199"',
    )
