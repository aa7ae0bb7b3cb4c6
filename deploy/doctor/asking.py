"""A listening socket asked as a stranger would: one request over HTTP, and where it speaks gRPC one call of each
service that Ray has. Only what reads and changes nothing is asked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any

ANSWER_S = 2.0
REQUEST = b"GET /metrics HTTP/1.0\r\nHost: doctor\r\n\r\n"
UNAUTHORISED = (b"401", b"403")
HTTP2_FRAME = b"\x00\x00"  # how an answer over HTTP/2 begins: a length of 24 bits that is small
QUESTIONS = (  # of Ray 2.60: none of them changes anything
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.LogService/ListLogs",
    "/ray.rpc.RayletDriver/ClusterInfo",
)


class Said(StrEnum):
    """What a socket let a stranger know."""

    REFUSED = "refused without a token"
    ANSWERED = "answers anybody"
    NO_SUCH = "knows none of the calls that are asked"
    UNCLEAR = "does not say"
    NOT_CALLED = "speaks gRPC, and was not called"
    NOT_ASKED = "was not asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """Asks without knowing any token.

    Attributes:
        call: a method of gRPC at an address, to the name of its status; None where grpcio is not installed.
    """

    call: Callable[[str, str], str] | None

    def ask(self, address: str, port: int) -> Said:
        """What is said at a port; takes `ANSWER_S` for each question at most."""
        answer = _http(address, port)
        if answer.startswith(b"HTTP/"):
            return Said.REFUSED if answer.split(b" ")[1:2][0] in UNAUTHORISED else Said.ANSWERED
        if not answer.startswith(HTTP2_FRAME):
            return Said.UNCLEAR
        if self.call is None:
            return Said.NOT_CALLED
        return _judged([self.call(f"{address}:{port}", method) for method in QUESTIONS])


def stranger() -> Stranger:
    """One that speaks gRPC if grpcio is installed, as it is wherever Ray's dashboard is."""
    return Stranger(call=_call if find_spec("grpc") is not None else None)


def _judged(statuses: list[str]) -> Said:
    if "UNAUTHENTICATED" in statuses:
        return Said.REFUSED
    if all(status == "UNIMPLEMENTED" for status in statuses):
        return Said.NO_SUCH
    return Said.ANSWERED if any(status not in ("UNIMPLEMENTED", "UNAVAILABLE") for status in statuses) else Said.UNCLEAR


def _http(address: str, port: int) -> bytes:
    """The beginning of an answer; empty where none comes."""
    try:
        with socket.create_connection((address, port), timeout=ANSWER_S) as connection:
            connection.sendall(REQUEST)
            return connection.recv(64)
    except OSError:
        return b""


def _call(address: str, method: str) -> str:
    grpc: Any = import_module("grpc")
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(method)(b"", timeout=ANSWER_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"
