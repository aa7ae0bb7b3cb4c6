"""A real run over embedded Ray, as a stranger on its network meets it, and everything that it writes (must-show 7).

One run for all facts: two actors, two ranks, metrics on the node's own address behind a token, Ray's token left on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from common.metrics_token import MetricsToken
from common.ports import own_address
from deploy.doctor.processes import all_processes, session_of
from deploy.watched import fetch
from tests.e2e.command import COMMAND, QUIET, ROOT, SMALL, updates_made

SECRET = "the-token-of-metrics-that-nobody-may-see"
RUN, LIMIT_S = "guarded", 150.0
LEARNS = ["--learners", "2", "--steps", "100000000", "--set", "metrics.host=node", "--set", "learner.device=cpu"]
STRANGER = """
import sys
from ray._raylet import GcsClient
try:
    print("answered:", len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)))
except Exception as error:
    print("refused:", type(error).__name__, error)
"""


@dataclass(frozen=True)
class Guarded:
    """The run, once both ranks learn.

    Attributes:
        out: its output directory.
        token_file: of metrics.
        written: what it has printed so far.
        sockets: as `truestep doctor` tells them.
        doctor_code: its exit code.
        process: the driver.
    """

    out: Path
    token_file: Path
    written: Path
    sockets: list[dict[str, Any]]
    doctor_code: int
    process: subprocess.Popen[bytes]

    @property
    def raylet(self) -> int:
        """Its process id."""
        pid: int = self.of("Ray raylet")[0]["listener"]["pid"]
        return pid

    @property
    def ray_environment(self) -> dict[str, str]:
        """As Ray's own processes have it, its token included."""
        entries = Path(f"/proc/{self.raylet}/environ").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def of(self, process: str) -> list[dict[str, Any]]:
        return [socket for socket in self.sockets if socket["process"] == process]


def environment(**more: str) -> dict[str, str]:
    """Ray's own choice about tokens: tests turn them off, a user's run does not."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "TRUESTEP_"))}
    return {**own, "RAY_USAGE_STATS_ENABLED": "0", **more}


def truestep(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    out, token_file, written = directory / "out", directory / "token", directory / "written"
    token_file.write_text(f"{SECRET}\n")
    arguments = ["train", "CartPole-v1", "--run", RUN, "--out", str(out), *SMALL, *QUIET, *LEARNS]
    variables = environment(TRUESTEP_METRICS_TOKEN_FILE=str(token_file))
    with (
        written.open("wb") as file,
        subprocess.Popen(
            [*COMMAND, *arguments], cwd=ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            learning = wait_until(
                lambda: process.poll() is not None or updates_made(out, RUN) > 1,
                clock=MonotonicClock(),
                seconds=LIMIT_S,
                poll_s=0.5,
            )
            assert learning and process.poll() is None, written.read_text()
            done = truestep("doctor", RUN, "--out", str(out), "--token-file", str(token_file), "--json")
            sockets = json.loads(done.stdout)["sockets"] if done.stdout else pytest.fail(done.stderr)
            yield Guarded(out, token_file, written, sockets, done.returncode, process)
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def test_every_socket_of_a_run_is_protected(run: Guarded) -> None:
    """Ray's by its token, metrics by theirs, ranks by the loopback; each was asked, and doctor exits with 0."""
    open_to_all = [f"{each['process']} {each['listener']}: {each['how']}" for each in run.sockets if each["open"]]
    assert (open_to_all, run.doctor_code) == ([], 0)
    assert {"driver", "actor-0", "actor-1", "learner-0", "learner-1", "Ray GCS", "Ray raylet"} <= {
        each["process"] for each in run.sockets
    }


def test_metrics_listen_on_the_address_that_was_asked_for_and_want_the_token(run: Guarded) -> None:
    """Five processes, each on the node's own address: nothing without the token, everything with it."""
    served = [each for each in run.sockets if each["serves"].startswith("metrics, profiles")]
    assert [each["listener"]["address"] for each in served] == [own_address()] * 5
    assert {each["protection"] for each in served} == {"token"}
    (driver,) = [each for each in served if each["process"] == "driver"]
    address = f"{own_address()}:{driver['listener']['port']}"
    answers = [
        fetch(address, path, timeout_s=10, who="the driver", token=MetricsToken(secret=SECRET))
        for path in ("/metrics", "/targets")
    ]
    assert [answer.status for answer in answers] == [200, 200]
    assert not any(SECRET.encode() in answer.body for answer in answers)


def test_ranks_meet_and_reduce_on_the_loopback(run: Guarded) -> None:
    """A store, and a socket of Gloo for each: none of them on another address."""
    group = [each for each in run.sockets if each["serves"] == "collectives of learner ranks"]
    assert len(group) >= 3
    assert {each["listener"]["address"] for each in group} == {"127.0.0.1"}


def test_an_unauthenticated_call_to_the_embedded_ray_is_refused(run: Guarded) -> None:
    """Ray's own client without a token, at the door of the cluster, from an address that others reach too."""
    (gcs,) = run.of("Ray GCS")
    code = [sys.executable, "-c", STRANGER, f"{own_address()}:{gcs['listener']['port']}"]

    def ask(**variables: str) -> str:
        done = subprocess.run(
            code, env=environment(**variables), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return done.stdout or done.stderr[-2000:]

    for said in (ask(RAY_AUTH_MODE="disabled"), ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a-guess-" * 8)):
        assert said.startswith("refused:"), said
        assert "uthenticat" in said
    known = run.ray_environment["RAY_AUTH_TOKEN"]
    assert ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=known).startswith("answered: 1")  # the question itself is sound


def test_no_secret_is_in_anything_that_a_run_writes(run: Guarded) -> None:
    """Output directory, what is printed, Ray's logs, `show` and `report`: neither token is anywhere."""
    report = truestep("report", RUN, "--out", str(run.out))
    shown = truestep("show", RUN, "--out", str(run.out), "--json")
    assert (report.returncode, shown.returncode) == (0, 0), report.stderr + shown.stderr
    variables = run.ray_environment
    secrets = {SECRET.encode(), variables["RAY_AUTH_TOKEN"].encode()}
    name = session_of(all_processes()[run.raylet].command)
    session = Path(variables.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray" / name
    assert (session / "logs").is_dir()
    files = [path for root in (run.out, session / "logs") for path in root.rglob("*") if path.is_file()]
    told = {str(path): path.read_bytes() for path in (*files, run.written)} | {"show": shown.stdout.encode()}
    assert any(path.endswith("runs.sqlite") for path in told)
    assert any(path.endswith("report.html") for path in told)
    assert [path for path, data in told.items() if any(secret in data for secret in secrets)] == []


def test_no_secret_is_on_a_command_line(run: Guarded) -> None:
    """Command lines are there for every user of the machine to read."""
    assert [each.command for each in all_processes().values() if SECRET in each.command] == []
