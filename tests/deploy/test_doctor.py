"""`truestep doctor`: whose sockets there are, what each says to a stranger, and how that is judged."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from common.listeners import Listener
from common.metrics import PortRange, new_registry, serve
from common.metrics_token import MetricsToken
from deploy.doctor.asking import QUESTIONS, Said, Stranger
from deploy.doctor.examination import Patient, examine, ray_token
from deploy.doctor.exposure import Exposure, Protection, Socket, judge
from deploy.doctor.machine import machine
from deploy.doctor.processes import Seen, all_processes, name_of, of_run, session_of
from deploy.watched import LiveProcess
from tests.deploy.live import target_of

RAYLET = "/opt/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/session_A/sockets/raylet"
HTTP2_SETTINGS = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00"  # what a server of gRPC says first


def seen(*rows: tuple[int, int, str]) -> dict[int, Seen]:
    return {pid: Seen(pid=pid, parent=parent, command=command) for pid, parent, command in rows}


# ---- whose processes -------------------------------------------------------------------------------------------------

EMBEDDED = seen(
    (1, 0, "init"),
    (10, 1, "python -m deploy train"),
    (11, 10, "/opt/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray/session_A/logs"),
    (12, 10, RAYLET),
    (13, 12, "ray::ActorProcess.collect"),
    (14, 13, "python env-server.py"),
    (20, 1, "/opt/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/session_B/sockets/raylet"),
    (21, 20, "ray::IDLE"),
    (30, 1, "sshd"),
)
CLUSTER = seen(
    (1, 0, "init"),
    (10, 1, "python -m deploy train"),
    (11, 1, "/opt/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray/session_A/logs"),
    (12, 1, RAYLET),
    (13, 12, "ray::ActorProcess.collect"),
    (15, 12, "ray::DashboardAgent"),
    (16, 1, "python /opt/ray/dashboard/dashboard.py --session-dir=/tmp/ray/session_A --port=8265"),
    (30, 1, "sshd"),
)


def test_an_embedded_run_is_the_drivers_tree() -> None:
    """Actors are children of the raylet, what environments start theirs; another run's Ray is not ours."""
    assert sorted(of_run([10], EMBEDDED)) == [10, 11, 12, 13, 14]


def test_in_a_cluster_the_ray_node_of_any_process_belongs_to_the_run() -> None:
    """The parent of an actor is a raylet; whatever names its session is looked at, though init is its parent."""
    assert sorted(of_run([10, 13], CLUSTER)) == [10, 11, 12, 13, 15, 16]
    assert sorted(of_run([10], CLUSTER)) == [10]


def test_who_is_gone_is_nobody() -> None:
    """A process id of a minute ago."""
    assert of_run([0, 99], EMBEDDED) == {}


@pytest.mark.parametrize(
    ("command", "session"),
    [
        (RAYLET, "session_A"),
        ("x --session-name=session_2026-11-30_08-28-16_070799_30895 --y", "session_2026-11-30_08-28-16_070799_30895"),
        ("ray::IDLE", ""),
        ("python my_session_thing.py", ""),
    ],
)
def test_a_session_is_read_off_a_command_line(command: str, session: str) -> None:
    """As a part of a path, or as a value."""
    assert session_of(command) == session


def test_this_process_and_its_child_are_found() -> None:
    """Names with spaces and brackets in them included."""
    with subprocess.Popen([sys.executable, "-c", "input()", "a ) b"], stdin=subprocess.PIPE) as child:
        assert wait_until(lambda: "a ) b" in all_processes()[child.pid].command, clock=MonotonicClock(), seconds=30)
        found = all_processes()[child.pid]
        assert found.parent == os.getpid()
        assert name_of(found).startswith("python")
        assert child.pid in of_run([os.getpid()], all_processes())
        child.communicate(b"\n")


# ---- what a socket says ----------------------------------------------------------------------------------------------


@contextmanager
def listening(answer: bytes) -> Iterator[int]:
    """A server that says `answer` to whoever connects, and closes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def statuses(**said: str) -> Callable[[str, str], str]:
    """A gRPC server that knows some of the questions; the last part of a method is its name here."""
    return lambda address, method: said.get(method.rpartition("/")[2], "UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("answer", "call", "said"),
    [
        (b"HTTP/1.0 401 Unauthorized\r\n\r\n", None, Said.REFUSED),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", None, Said.REFUSED),
        (b"HTTP/1.1 200 OK\r\n\r\n", None, Said.ANSWERED),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", None, Said.ANSWERED),
        (HTTP2_SETTINGS, statuses(GetNodeStats="UNAUTHENTICATED"), Said.REFUSED),
        (HTTP2_SETTINGS, statuses(GetNodeStats="OK"), Said.ANSWERED),
        (HTTP2_SETTINGS, statuses(GetAllNodeInfo="INVALID_ARGUMENT"), Said.ANSWERED),
        (HTTP2_SETTINGS, statuses(), Said.NO_SUCH),
        (HTTP2_SETTINGS, lambda address, method: "UNAVAILABLE", Said.UNCLEAR),
        (HTTP2_SETTINGS, None, Said.NOT_CALLED),
        (b"SSH-2.0-OpenSSH\r\n", None, Said.UNCLEAR),
        (b"", None, Said.UNCLEAR),
    ],
)
def test_what_a_stranger_hears(answer: bytes, call: Callable[[str, str], str] | None, said: Said) -> None:
    """By status of HTTP, and of gRPC where that is spoken; a refusal of any call counts as one of all."""
    with listening(answer) as port:
        assert Stranger(call=call).ask("127.0.0.1", port) is said


def test_nobody_there_says_nothing() -> None:
    """It closed while it was looked at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert Stranger(call=None).ask("127.0.0.1", port) is Said.UNCLEAR


def test_only_what_changes_nothing_is_called() -> None:
    """Every question reads."""
    assert all(question.rpartition("/")[2].startswith(("Get", "List", "ClusterInfo")) for question in QUESTIONS)


# ---- judgement -------------------------------------------------------------------------------------------------------


def sock(said: Said, *, address: str = "::", pid: int = 7, port: int = 1, **more: bool) -> Socket:
    flags = {"metrics": False, "collectives": False, **more}
    return Socket(process="Ray raylet", listener=Listener(pid=pid, address=address, port=port), said=said, **flags)


def one(socket: Socket, ray_token: bool | None = None) -> Exposure:
    (exposure,) = judge([socket], ray_token=ray_token)
    return exposure


@pytest.mark.parametrize(
    ("socket", "ray_token", "protection"),
    [
        (sock(Said.REFUSED), None, Protection.TOKEN),
        (sock(Said.REFUSED), False, Protection.TOKEN),  # what is asked goes before what is said elsewhere
        (sock(Said.ANSWERED), True, Protection.NOTHING),
        (sock(Said.NOT_CALLED), True, Protection.TOKEN),
        (sock(Said.NOT_CALLED), False, Protection.NOTHING),
        (sock(Said.NOT_CALLED), None, Protection.UNKNOWN),
        (sock(Said.NO_SUCH), True, Protection.UNKNOWN),
        (sock(Said.UNCLEAR), True, Protection.UNKNOWN),
        (sock(Said.NOT_ASKED), True, Protection.UNKNOWN),
        (sock(Said.NOT_ASKED, collectives=True, address="10.0.0.1"), True, Protection.NOTHING),
    ],
)
def test_what_protects_a_socket_of_all_addresses(
    socket: Socket, ray_token: bool | None, protection: Protection
) -> None:
    """Whatever is not known to be protected counts as open."""
    exposure = one(socket, ray_token)
    assert exposure.protection is protection
    assert exposure.open == (protection is not Protection.TOKEN)
    assert exposure.to_plain()["open"] == exposure.open


@pytest.mark.parametrize("said", [Said.ANSWERED, Said.UNCLEAR, Said.NOT_ASKED, Said.NO_SUCH])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_loopback_address_protects(said: Said, address: str) -> None:
    """From other machines; ranks that meet there need no more."""
    assert one(sock(said, address=address)).protection is Protection.LOOPBACK
    assert one(sock(Said.NOT_ASKED, address=address, collectives=True)).protection is Protection.LOOPBACK


def test_a_port_that_knows_no_call_is_judged_by_its_sibling() -> None:
    """A raylet has two servers of one kind; no call of the second can be asked without changing something."""
    pair = judge([sock(Said.REFUSED, port=1), sock(Said.NO_SUCH, port=2)], ray_token=None)
    assert [exposure.protection for exposure in pair] == [Protection.TOKEN, Protection.TOKEN]
    strangers = judge([sock(Said.REFUSED, pid=7, port=1), sock(Said.NO_SUCH, pid=8, port=2)], ray_token=None)
    assert [exposure.protection for exposure in strangers] == [Protection.TOKEN, Protection.UNKNOWN]


def test_metrics_behind_a_token_say_nothing_of_ray() -> None:
    """They are guarded by another one."""
    both = [sock(Said.REFUSED, port=1, metrics=True), sock(Said.NO_SUCH, port=2)]
    assert [exposure.protection for exposure in judge(both, ray_token=None)] == [Protection.TOKEN, Protection.UNKNOWN]


def test_an_inherited_socket_is_one_socket() -> None:
    """Of the process that came first."""
    twice = judge([sock(Said.REFUSED, pid=9), sock(Said.REFUSED, pid=8)], ray_token=None)
    assert [exposure.listener.pid for exposure in twice] == [8]


def test_the_mode_of_rays_processes_is_read_off_their_environment(tmp_path: Path) -> None:
    """Every raylet has to have it; one that cannot be read says nothing."""
    for pid, mode in ((12, b"token"), (13, b"disabled")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(b"A=1\0RAY_AUTH_MODE=" + mode + b"\0EMPTY\0")
    found = seen((12, 1, RAYLET), (13, 1, RAYLET), (14, 1, "ray::IDLE"), (15, 1, RAYLET))
    assert ray_token([found[12], found[14]], proc=tmp_path) is True
    assert ray_token([found[12], found[13]], proc=tmp_path) is False
    assert ray_token([found[14], found[15]], proc=tmp_path) is None


# ---- a run in this process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "secret", "protection"),
    [
        ("127.0.0.1", "", Protection.LOOPBACK),
        ("127.0.0.1", "a-secret-of-32-characters-or-so", Protection.TOKEN),
        ("0.0.0.0", "", Protection.NOTHING),
        ("0.0.0.0", "a-secret-of-32-characters-or-so", Protection.TOKEN),
    ],
)
def test_metrics_are_asked_as_anything_else(host: str, secret: str, protection: Protection) -> None:
    """The driver's own server on the loopback or on all addresses, with a token and without."""
    token = MetricsToken(secret=secret) if secret else None
    with serve(new_registry(), host=host, ports=PortRange.parse("0"), token=token, who="driver") as server:
        target = target_of("driver", 0, f"127.0.0.1:{server.port}")
        listed = LiveProcess(
            role="driver", index=0, instance="driver-0", address=target.address, host=target.host, pid=target.pid
        )
        patient = Patient(driver=os.getpid(), listed=[listed])
        (found,) = [each for each in examine(patient, Stranger(call=None)) if each.listener.port == server.port]
    assert (found.process, found.protection) == ("driver", protection)
    assert found.serves == "metrics, profiles, discovery"


def test_nothing_of_a_stranger_reaches_what_ranks_meet_by() -> None:
    """A socket of ours on one address that is no metrics may be a group's: bytes there could end it."""
    asked: list[int] = []

    class Counting(Stranger):
        __slots__ = ()

        def ask(self, address: str, port: int) -> Said:
            asked.append(port)
            return Said.UNCLEAR

    with socket.create_server(("127.0.0.1", 0)) as meeting, socket.create_server(("", 0)) as other:
        patient = Patient(driver=os.getpid(), listed=[])
        found = {each.listener.port: each for each in examine(patient, Counting(call=None))}
        ports = (meeting.getsockname()[1], other.getsockname()[1])
    assert ports[0] not in asked
    assert ports[1] in asked
    assert found[ports[0]].serves == "collectives of learner ranks"
    assert found[ports[1]].open


# ---- the machine -----------------------------------------------------------------------------------------------------


def test_the_machine_shows_no_secret(tmp_path: Path) -> None:
    """Names of variables that sound like a credential, never their values; the path of the token's file is none."""
    environment = {
        "RAY_AUTH_TOKEN": "ray-secret",
        "AWS_SECRET_ACCESS_KEY": "aws-secret",
        "NCCL_SECRET_KEY": "nccl-secret",
        "RAY_AUTH_MODE": "token",
        "TRUESTEP_METRICS_TOKEN_FILE": "/run/secrets/metrics",
        "OMP_NUM_THREADS": "1",
    }
    facts = machine(tmp_path / "not" / "there", environment)
    text = "\n".join(facts.values())
    assert not any(secret in text for secret in ("ray-secret", "aws-secret", "nccl-secret"))
    assert facts["secrets"] == "set, and shown nowhere: AWS_SECRET_ACCESS_KEY, NCCL_SECRET_KEY, RAY_AUTH_TOKEN"
    assert "OMP_NUM_THREADS=1 RAY_AUTH_MODE=token TRUESTEP_METRICS_TOKEN_FILE=/run/secrets/metrics" in text
    assert str(tmp_path) in facts["output"]
