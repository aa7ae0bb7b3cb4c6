"""The server that Prometheus scrapes: routes, ports, faults, and nothing left behind (E1, C40, C41)."""

from __future__ import annotations

import gzip
import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import ConfigError, OutputError
from common.metrics import DriverMetrics, MetricsServer, PortRange, Registry, Target, new_registry, serve
from common.metrics_http import MAX_REQUESTS
from common.ports import port_holder
from common.probes import Probe, ProbeAnswer

ANY_PORT = PortRange.parse("0")
HOST = "127.0.0.1"


class BrokenRegistry:
    """Raises when rendered, until mended."""

    def __init__(self) -> None:
        self.broken = True

    def render(self, accept: str) -> tuple[bytes, str]:
        if self.broken:
            raise RuntimeError("a gauge cannot be read")
        return b"up 1\n", "text/plain"

    def account(self, cpu_ns: int) -> None:
        assert cpu_ns >= 0


@pytest.fixture
def registry() -> Registry:
    return new_registry()


@pytest.fixture
def server(registry: Registry) -> Iterator[MetricsServer]:
    with serve(registry, ports=ANY_PORT, who="actor 3") as running:
        yield running


def get(port: int, path: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
    connection = HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def free_ports(count: int) -> int:
    """First of `count` consecutive free ports, below those that systems hand out by themselves."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        try:
            for port in range(first, first + count):
                with socket.create_server((HOST, port), reuse_port=False):
                    pass
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def target(index: int) -> Target:
    return Target(
        role="actor",
        index=index,
        lease=f"lease{index}",
        address=f"10.0.0.{index}:9100",
        run="r-1",
        host=f"node-{index}",
        pid=100 + index,
    )


# ---- routes ----------------------------------------------------------------------------------------------------------


def test_metrics_are_served_as_prometheus_reads_them(server: MetricsServer, registry: Registry) -> None:
    """A scrape parses, shows what was recorded, and the next one shows that the first cost something."""
    DriverMetrics(registry).set_evaluation(return_mean=12.5, episodes=3)
    status, headers, body = get(server.port, "/metrics?x=y")
    values = {s.name: s.value for family in text_string_to_metric_families(body.decode()) for s in family.samples}
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert values["truestep_driver_evaluation_return_mean"] == 12.5
    before = values["truestep_process_metrics_cpu_seconds_total"]
    assert registry.cpu_seconds > before


@pytest.mark.parametrize(
    ("accept", "zipped"),
    [("gzip, deflate", True), ("deflate,GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("xgzip", False)],
)
def test_gzip_if_asked(server: MetricsServer, accept: str, zipped: bool) -> None:
    """The body is compressed only for those who can read it."""
    _, headers, body = get(server.port, "/metrics", Accept_Encoding=accept)
    assert (headers["Content-Encoding"] == "gzip") == zipped
    text = gzip.decompress(body) if zipped else body
    assert text.startswith(b"# HELP truestep_")
    assert int(headers["Content-Length"]) == len(body)


def test_open_metrics_if_asked(server: MetricsServer) -> None:
    """Content negotiation reaches the registry."""
    _, headers, body = get(server.port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_targets_are_what_is_alive_now(registry: Registry) -> None:
    """Service discovery asks anew each time: a dead actor is gone with the next request (C41)."""
    alive = [target(0), target(1)]
    with serve(registry, ports=ANY_PORT, targets=lambda: list(alive), who="driver") as server:
        status, headers, body = get(server.port, "/targets")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        labels = {
            "instance": "actor-1-lease1",
            "role": "actor",
            "index": "1",
            "run": "r-1",
            "__meta_truestep_host": "node-1",
            "__meta_truestep_pid": "101",
        }
        assert json.loads(body)[1] == {"targets": ["10.0.0.1:9100"], "labels": labels}
        del alive[1]
        assert [entry["labels"]["index"] for entry in json.loads(get(server.port, "/targets")[2])] == ["0"]
        alive.clear()
        assert json.loads(get(server.port, "/targets")[2]) == []


def test_unknown_paths_are_told_what_there_is(server: MetricsServer) -> None:
    """404 lists the routes; without a targets function there is no /targets."""
    assert get(server.port, "/")[0] == 404
    status, _, body = get(server.port, "/targets")
    assert (status, body) == (404, b"actor 3 serves /metrics /startupz /livez /readyz /healthz\n")


def test_only_get_is_answered(server: MetricsServer) -> None:
    """Anything else is refused by the protocol's own code."""
    connection = HTTPConnection(HOST, server.port, timeout=10)
    connection.request("POST", "/metrics", body=b"x")
    assert connection.getresponse().status == 501
    connection.close()


class OnlyAlive:
    """Says yes to one question."""

    def ask(self, probe: Probe) -> ProbeAnswer:
        return ProbeAnswer(yes=probe is Probe.LIVE, why=f"asked for {probe.name}")


def test_probes_are_answered_with_the_reason(server: MetricsServer, registry: Registry) -> None:
    """A process that was given nobody to ask says yes to all; 503 is no, and the body says why."""
    assert {get(server.port, probe)[0] for probe in Probe} == {200}
    with serve(registry, ports=ANY_PORT, prober=OnlyAlive(), who="driver") as other:
        answers = {probe: get(other.port, f"{probe}?verbose") for probe in Probe}
    assert {probe: answer[0] for probe, answer in answers.items()} == {
        Probe.STARTUP: 503,
        Probe.LIVE: 200,
        Probe.READY: 503,
        Probe.HEALTH: 503,
    }
    assert answers[Probe.READY][2] == b"asked for READY\n"


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_scrape_that_raises_costs_that_scrape_only(caplog: pytest.LogCaptureFixture) -> None:
    """500 and one log record with the cause; the next scrape is answered."""
    registry = BrokenRegistry()
    with serve(registry, ports=ANY_PORT, who="actor 3") as server:
        assert get(server.port, "/metrics")[0] == 500
        registry.broken = False
        assert get(server.port, "/metrics")[2] == b"up 1\n"
    assert [record.getMessage() for record in caplog.records] == ["metrics of actor 3: /metrics could not be answered"]
    assert "a gauge cannot be read" in caplog.text


def test_callbacks_that_raise_are_a_500(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Neither targets nor probes can take the server down."""

    class Fails:
        def ask(self, probe: Probe) -> ProbeAnswer:
            raise KeyError("actor 4")

    def fail() -> list[Target]:
        raise KeyError("actor 4")

    with serve(registry, ports=ANY_PORT, targets=fail, prober=Fails(), who="d") as s:
        assert [get(s.port, path)[0] for path in ("/targets", "/healthz", "/metrics")] == [500, 500, 200]
    assert len(caplog.records) == 2


def test_a_client_that_goes_away_is_no_error(server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
    """A connection reset in the middle leaves nothing in the log but a debug line, and the server answers others."""
    with caplog.at_level(logging.INFO):
        for request in (b"", b"GET /metr", b"GET /metrics HTTP/1.0\r\n\r\n", b"\x00\xff\r\n\r\n"):
            with socket.create_connection((HOST, server.port), timeout=10) as client:
                client.sendall(request)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by reset
        assert get(server.port, "/healthz")[0] == 200
        server.close()
    assert caplog.records == []


def test_a_flood_of_connections_is_bounded(server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the limit a connection is closed unanswered, and the log says so; close() still ends them all."""
    idle = [socket.create_connection((HOST, server.port), timeout=10) for _ in range(MAX_REQUESTS)]
    with pytest.raises(ConnectionError):
        get(server.port, "/healthz")
    server.close()
    assert "more than 32 requests at once" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metrics of actor 3")]
    for client in idle:
        client.close()


def test_requests_one_after_the_other_are_no_flood(server: MetricsServer) -> None:
    """A request that is over no longer counts."""
    assert {get(server.port, "/healthz")[0] for _ in range(MAX_REQUESTS + 5)} == {200}


# ---- life ------------------------------------------------------------------------------------------------------------


def test_started_three_times_on_one_port_and_nothing_left() -> None:
    """C40: create, run, close and again at once, on the same port: no thread and no file descriptor remains."""
    ports = PortRange.parse(str(free_ports(1)))
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with serve(new_registry(), ports=ports, who="learner") as server:
            assert server.port == ports.first
            assert get(server.port, "/metrics")[0] == 200  # the server closes first: TIME_WAIT stays on this port
            assert {"metrics of learner"} <= {thread.name for thread in threading.enumerate() if thread.daemon}
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_closing_cuts_a_client_that_says_nothing(server: MetricsServer) -> None:
    """close() does not wait for the client's deadline; after it nobody listens, and closing again does nothing."""
    with socket.create_connection((HOST, server.port), timeout=10) as client:
        assert get(server.port, "/healthz")[0] == 200  # accepted after the silent one: that has its thread
        server.close()
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port), timeout=10)
    server.close()


# ---- ports -----------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named_with_its_holder(registry: Registry) -> None:
    """Another program has it: the error says which port, which process, and what to do (C40)."""
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OutputError) as caught:
            serve(registry, ports=PortRange.parse(str(port)), who="driver")
    assert caught.value.what == f"metrics of driver: port {port} of {HOST} is taken"
    assert f"process {os.getpid()} (" in str(caught.value.got)
    assert '"0" (any free port)' in caught.value.fix


def test_only_a_listener_holds_a_port(server: MetricsServer) -> None:
    """A connection from a port, even of this process, is not what takes it."""
    with socket.create_connection((HOST, server.port), timeout=10) as client:
        assert port_holder(client.getsockname()[1]) is None
        assert f"process {os.getpid()} (" in str(port_holder(server.port))


def test_a_range_gives_each_server_its_own_port(registry: Registry) -> None:
    """Two live servers never share a port; the first free one is taken; a full range is an error."""
    first = free_ports(2)
    ports = PortRange.parse(f"{first}-{first + 1}")
    with serve(registry, ports=ports, who="actor 0") as one:
        with serve(registry, ports=ports, who="actor 1") as two:
            assert (one.port, two.port) == (first, first + 1)
            with pytest.raises(OutputError, match=f"actor 2: every port {first}-{first + 1} of {HOST} is taken"):
                serve(registry, ports=ports, who="actor 2")
        with serve(registry, ports=ports, who="actor 2") as three:
            assert three.port == first + 1


def test_an_address_that_is_not_ours_is_a_clear_error(registry: Registry) -> None:
    """The host is named, and the advice fits the cause."""
    with pytest.raises(OutputError, match=r"cannot listen on 192\.0\.2\.1 port 0.*use an address of this host"):
        serve(registry, host="192.0.2.1", ports=ANY_PORT, who="driver")


@pytest.mark.parametrize(
    ("text", "first", "last"), [("0", 0, 0), ("9100", 9100, 9100), (" 9100-9199 ", 9100, 9199), ("1-65535", 1, 65535)]
)
def test_port_ranges_are_read(text: str, first: int, last: int) -> None:
    """A port, a range, or 0."""
    ports = PortRange.parse(text)
    assert ports == PortRange(first=first, last=last)
    assert PortRange.parse(str(ports)) == ports


@pytest.mark.parametrize("text", ["", "any", "-1", "9100-", "9199-9100", "65536", "0-5", "9100-99999", "1 - 2", "９"])
def test_a_bad_port_range_is_refused(text: str) -> None:
    """Whatever else is a configuration error that shows what was got."""
    with pytest.raises(ConfigError, match=r"ports for metrics; got .*allowed: "):
        PortRange.parse(text)
