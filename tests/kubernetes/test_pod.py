"""`python -m deploy.pod`: what a pod's probes say of a driver that is there, is not yet there, starts, or is stuck."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.clock import MonotonicClock
from deploy.pod import PORT, TOKEN_FILE, Answer, Pod, Question, answer, main, pod_of

ANSWER_WITHIN_S = 0.5
ENDS_WITHIN_S = 20.0
Pages = dict[str, tuple[int, str]]
HEALTHY: Pages = {"/startupz": (200, "ok"), "/livez": (200, "ok"), "/readyz": (200, "ok")}


@contextmanager
def serving(pages: Pages, *, wants: str = "") -> Iterator[int]:
    """A server of fixed answers; `wants` is the token that it asks for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = not wants or self.headers.get("Authorization") == f"Bearer {wants}"
            status, text = pages.get(self.path, (404, "no such page")) if allowed else (401, "a token is wanted")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Tests say what went wrong."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def silent() -> Iterator[int]:
    """Something that listens, takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def nobody() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def pod(driver: int, ray: int = 0, secret: str = "") -> Pod:
    return Pod(driver_port=driver, ray_port=ray or nobody(), token=secret, answer_within_s=ANSWER_WITHIN_S)


# ── probes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [200, 503])
def test_before_there_is_a_driver_ray_speaks_for_the_pod(status: int) -> None:
    """Else KubeRay would wait for ever for a pod that is ready to be given its job."""
    with serving({"/api/healthz": (status, "raylet: success\ngcs: success")}) as ray:
        for said in (pod(nobody(), ray).alive(), pod(nobody(), ray).ready()):
            assert said == Answer(yes=status == 200, why="no driver; Ray: raylet: success gcs: success")


def test_a_pod_without_driver_and_ray_is_neither_alive_nor_ready() -> None:
    """And says which ports were asked."""
    empty = pod(nobody())
    assert not empty.alive().yes and not empty.ready().yes
    assert str(empty.driver_port) in empty.alive().why


def test_once_there_is_a_driver_only_its_word_counts() -> None:
    """Ray is healthy, and the run makes no progress; or has no weights yet."""
    with serving({"/api/healthz": (200, "ok")}) as ray:
        with serving(HEALTHY | {"/livez": (503, "no progress for 612 s")}) as driver:
            assert pod(driver, ray).alive() == Answer(yes=False, why="the driver's /livez: 503 no progress for 612 s")
            assert pod(driver, ray).ready().yes
        with serving(HEALTHY | {"/readyz": (503, "no weights yet")}) as driver:
            assert pod(driver, ray).alive().yes
            assert pod(driver, ray).ready() == Answer(yes=False, why="the driver's /readyz: 503 no weights yet")


def test_a_driver_that_starts_is_alive_and_not_ready() -> None:
    """A start is allowed the time that anything else is: one that never ends would else never be ended."""
    starting = {
        "/startupz": (503, "no record yet"),
        "/livez": (200, "started, 9 s ago"),
        "/readyz": (503, "no weights"),
    }
    with serving(starting) as driver:
        assert pod(driver).alive() == Answer(yes=True, why="the driver's /livez: 200 started, 9 s ago")
        assert not pod(driver).ready().yes
    with serving(starting | {"/livez": (503, "no progress for 1141 s")}) as driver:
        assert not pod(driver).alive().yes


def test_a_driver_that_listens_and_is_silent_is_not_alive() -> None:
    """Healthy Ray does not make up for it."""
    with serving({"/api/healthz": (200, "ok")}) as ray, silent() as driver:
        for said in (pod(driver, ray).alive(), pod(driver, ray).ready()):
            assert not said.yes and "did not answer" in said.why


def test_probes_need_no_token() -> None:
    """They are asked without one where there is none."""
    with serving(HEALTHY) as driver:
        assert pod(driver).alive().yes and pod(driver).ready().yes


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

ENDS_WHEN_TOLD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
HEARS_NOTHING = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@contextmanager
def process(source: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.kill()
        started.communicate()


def targets(pid: int) -> Pages:
    labels = [{"role": "driver", "__meta_truestep_pid": str(pid)}, {"role": "actor", "__meta_truestep_pid": "1"}]
    return {"/targets": (200, json.dumps([{"targets": ["127.0.0.1:1"], "labels": each} for each in labels]))}


def test_stop_waits_until_the_driver_has_ended() -> None:
    """SIGTERM to the process that discovery names as the driver; nobody has waited for it yet, so it is a zombie."""
    with process(ENDS_WHEN_TOLD) as driver, serving(targets(driver.pid)) as port:
        said = pod(port).stop(clock=MonotonicClock(), within_s=ENDS_WITHIN_S)
        assert said == Answer(yes=True, why=f"the driver, process {driver.pid}, has ended")
        assert driver.wait(ENDS_WITHIN_S) == 75


def test_stop_says_so_if_the_driver_does_not_end() -> None:
    """After its time, and before Kubernetes kills the pod."""
    with process(HEARS_NOTHING) as driver, serving(targets(driver.pid)) as port:
        said = pod(port).stop(clock=MonotonicClock(), within_s=0.3)
        assert not said.yes and "has not ended within 0.3 s" in said.why
        assert driver.poll() is None


def test_stop_without_a_driver_is_done() -> None:
    """A pod that was not given its job yet ends at once; and so does one whose driver has just gone."""
    assert pod(nobody()).stop(clock=MonotonicClock()) == Answer(yes=True, why="no driver")
    with process(ENDS_WHEN_TOLD) as driver:
        driver.send_signal(signal.SIGTERM)
        driver.wait(ENDS_WITHIN_S)
        with serving(targets(driver.pid)) as port:
            assert pod(port).stop(clock=MonotonicClock()).yes


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ((200, "[]"), "0 drivers among 0 targets"),
        ((200, "not JSON"), "JSONDecodeError"),
        ((500, "failed"), "status 500: failed"),
    ],
)
def test_stop_says_why_it_does_not_know_the_driver(page: tuple[int, str], told: str) -> None:
    """It ends nobody on a guess."""
    with serving({"/targets": page}) as port:
        said = pod(port).stop(clock=MonotonicClock())
        assert not said.yes and told in said.why


def test_stop_shows_the_token(tmp_path: Path) -> None:
    """Discovery wants it where metrics do; it is read from the file that the environment names, and never printed."""
    (tmp_path / "token").write_text("s3cret\n")
    secret = pod_of({TOKEN_FILE: str(tmp_path / "token")}).token
    with process(ENDS_WHEN_TOLD) as driver, serving(targets(driver.pid), wants="s3cret") as port:
        refused = pod(port).stop(clock=MonotonicClock(), within_s=0.3)
        assert not refused.yes and "401" in refused.why
        assert pod(port, secret=secret).stop(clock=MonotonicClock(), within_s=ENDS_WITHIN_S).yes
    assert secret not in refused.why


def test_the_environment_says_where_the_driver_is() -> None:
    """Port 9100 and no token unless it says otherwise."""
    assert pod_of({}) == Pod(driver_port=9100, ray_port=52365, token="")
    assert pod_of({PORT: "9700"}).driver_port == 9700


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_question_has_an_answer() -> None:
    """And the command line takes them and nothing else."""
    with serving(HEALTHY | {"/targets": (500, "")}) as driver:
        said = {question: answer(question, pod(driver), clock=MonotonicClock()).yes for question in Question}
    assert said == {Question.LIVEZ: True, Question.READYZ: True, Question.STOP: False}
    assert main([]) == main(["healthz"]) == main(["livez", "readyz"]) == 2


def test_a_probe_imports_nothing_heavy() -> None:
    """The kubelet starts one every few seconds in a pod whose processors are busy."""
    code = "import sys, deploy.pod; print(sorted({'numpy', 'torch', 'ray', 'rich', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
