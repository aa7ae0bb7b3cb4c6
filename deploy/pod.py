"""What Kubernetes asks of the pod that holds the driver: `python -m deploy.pod livez | readyz | stop`.

kubelet ── exec ──► deploy.pod ── http ──► the driver (port 9100), or, while there is none, Ray's own agent (52365)

A RayJob's entry point runs in the head pod, but not from its beginning: KubeRay submits it once every pod is ready. A
plain HTTP probe of the driver would keep the pod from ever being ready. So where nothing listens on the driver's port,
Ray's health is the answer; once a driver listens, only the driver's own answer counts. One that listens and does not
answer is not alive.

Exit codes: 0 yes, 1 no, and why on standard output, where `kubectl describe pod` shows it. Imports nothing heavy: the
kubelet starts one every few seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from common.clock import Clock, MonotonicClock, wait_until

TOKEN_FILE, PORT = "TRUESTEP_METRICS_TOKEN_FILE", "TRUESTEP_DRIVER_PORT"  # of the environment
DRIVER_PORT, RAY_PORT = 9100, 52365
ANSWER_WITHIN_S = 8.0  # the driver answers within 1 s; a pod whose processors are all taken may need longer to ask
STOP_WITHIN_S = 270.0
POLL_S = 0.2
GONE_STATES = "ZX"  # proc_pid_stat(5)


class Question(StrEnum):
    """What can be asked."""

    LIVEZ = "livez"
    READYZ = "readyz"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An exit code's worth of truth, and the reason.

    Attributes:
        yes: whether it is so.
        why: one line.
    """

    yes: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an address answered.

    Attributes:
        status: of HTTP.
        text: as it came.
    """

    status: int
    text: str

    @property
    def line(self) -> str:
        """The text in one line."""
        return " ".join(self.text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Where to ask.

    Attributes:
        driver_port: of the driver's server, on the loopback; `metrics.port` of its configuration. The command takes it
            from TRUESTEP_DRIVER_PORT.
        ray_port: of Ray's agent.
        token: of the driver's server; "" where it wants none.
        answer_within_s: for a request.
    """

    driver_port: int = DRIVER_PORT
    ray_port: int = RAY_PORT
    token: str = ""
    answer_within_s: float = ANSWER_WITHIN_S

    def alive(self) -> Answer:
        """Whether the driver makes progress, from its very start on; with no driver, whether Ray is well."""
        return self._verdict("/livez")

    def ready(self) -> Answer:
        """Whether weights are loaded and everybody was heard; with no driver, whether Ray could take one."""
        return self._verdict("/readyz")

    def ray_healthy(self) -> Answer:
        """What Ray's agent says of the raylet, and on the head of the GCS."""
        try:
            reply = self._get(self.ray_port, "/api/healthz")
        except ConnectionRefusedError:
            return Answer(yes=False, why=f"neither a driver nor Ray's agent listens (ports {self._ports})")
        except (OSError, http.client.HTTPException) as error:
            return Answer(yes=False, why=f"Ray's agent did not answer within {self.answer_within_s:g} s: {error!r}")
        return Answer(yes=reply.status == http.client.OK, why=f"no driver; Ray: {reply.line}")

    def stop(self, *, clock: Clock, within_s: float = STOP_WITHIN_S) -> Answer:
        """Ask the driver to checkpoint and end, and wait until it is gone; yes if it is.

        Kubernetes sends its signal to the first process of a container, which is Ray's; the driver would be killed with
        Ray before it has written anything.
        """
        try:
            pid = self._driver_pid()
        except ConnectionRefusedError:
            return Answer(yes=True, why="no driver")
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            return Answer(yes=False, why=f"the driver's pid could not be had from /targets: {error!r}")
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return Answer(yes=True, why=f"the driver, process {pid}, has gone")
        if wait_until(lambda: _gone(pid), clock=clock, seconds=within_s, poll_s=POLL_S):
            return Answer(yes=True, why=f"the driver, process {pid}, has ended")
        return Answer(yes=False, why=f"the driver, process {pid}, has not ended within {within_s:g} s of SIGTERM")

    @property
    def _ports(self) -> str:
        return f"{self.driver_port}, {self.ray_port}"

    def _verdict(self, path: str) -> Answer:
        reply = self._ask_driver(path)
        if reply is None:
            return self.ray_healthy()
        if isinstance(reply, Answer):
            return reply
        return Answer(yes=reply.status == http.client.OK, why=f"the driver's {path}: {reply.status} {reply.line}")

    def _ask_driver(self, path: str) -> Reply | Answer | None:
        """What it answers; None if nobody listens; an answer of ours if it listens and keeps silent."""
        try:
            return self._get(self.driver_port, path)
        except ConnectionRefusedError:
            return None
        except (OSError, http.client.HTTPException) as error:
            return Answer(yes=False, why=f"the driver did not answer {path} in {self.answer_within_s:g} s: {error!r}")

    def _driver_pid(self) -> int:
        """From discovery. Raises LookupError if it lists no driver."""
        reply = self._get(self.driver_port, "/targets")
        if reply.status != http.client.OK:
            raise LookupError(f"status {reply.status}: {reply.line}")
        labels = [entry["labels"] for entry in json.loads(reply.text)]
        pids = [int(each["__meta_truestep_pid"]) for each in labels if each["role"] == "driver"]
        if len(pids) != 1:
            raise LookupError(f"{len(pids)} drivers among {len(labels)} targets")
        return pids[0]

    def _get(self, port: int, path: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self.answer_within_s)
        try:
            headers = {"Authorization": f"Bearer {self.token}"} if self.token and port == self.driver_port else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return Reply(status=response.status, text=response.read().decode(errors="replace"))
        finally:
            connection.close()


def answer(question: Question, pod: Pod, *, clock: Clock) -> Answer:
    """Ask it."""
    match question:
        case Question.LIVEZ:
            return pod.alive()
        case Question.READYZ:
            return pod.ready()
        case Question.STOP:
            return pod.stop(clock=clock)


def pod_of(environment: Mapping[str, str]) -> Pod:
    """As the environment says. Raises OSError for a token's file that cannot be read, ValueError for a port."""
    path = environment.get(TOKEN_FILE, "")
    token = Path(path).read_text(encoding="utf-8").strip() if path else ""
    return Pod(driver_port=int(environment.get(PORT, DRIVER_PORT)), token=token)


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in set(Question):
        print(f"usage: python -m deploy.pod {' | '.join(Question)}; got {' '.join(arguments) or 'nothing'}")
        return 2
    given = answer(Question(arguments[0]), pod_of(os.environ), clock=MonotonicClock())
    print(given.why)
    return 0 if given.yes else 1


def _gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat[stat.rindex(")") + 2] in GONE_STATES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
