"""A live run as seen from outside: its driver, the processes that it lists, and requests that end in time.

RUN ──► record ──► driver's address, token ──► /targets ──► every process: name, address, host, pid ──► its own pages
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import ConfigError, OutputError, RunNotFoundError, UnreachableError
from common.metrics_token import TOKEN_FILE_VARIABLE, MetricsToken, read_token, token_file
from deploy.outputs import open_registry
from deploy.serving import driver_address

ANSWER_S = 5.0  # for a page that takes its process no time
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a process answered.

    Attributes:
        status: of HTTP.
        body: all of it.
    """

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProcess:
    """A process that a driver lists.

    Attributes:
        role: driver, actor or learner.
        index: which of them.
        instance: role, index and lease: another one after a restart.
        address: "host:port" of its pages.
        host: name of the machine that it runs on; "" if its driver does not say.
        pid: its process id there; 0 if its driver does not say.
        token: what it wants to be asked with, if anything.
    """

    role: str
    index: int
    instance: str
    address: str
    host: str
    pid: int
    token: MetricsToken | None = None

    @property
    def name(self) -> str:
        """As people call it: `driver`, `actor-3`, `learner-0`."""
        return self.role if self.role == "driver" else f"{self.role}-{self.index}"


def address_of_run(run: str, out: Path, given: str) -> str:
    """Where the driver of a run serves: as given, else as the run's record has it.

    Raises:
        UserError: there is no such run, nobody drives it, it serves nothing, or `given` is no "host:port".
    """
    if not given:
        with open_registry(out) as registry:
            return driver_address(registry, run)
    parts = urlsplit(f"//{given}")
    try:
        sound = bool(parts.hostname and parts.port) and not parts.path
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("--address", got=repr(given), allowed="host:port of the run's driver")
    return given


def token_of_run(run: str, out: Path, given: Path | None) -> MetricsToken | None:
    """The token of metrics: from the file that is given, else from that of the environment or of the run's record.

    Raises:
        ConfigError: there is such a file, and it holds no token.
    """
    if given is not None:
        return read_token(given)
    return read_token(token_file("") or token_file(_recorded_token_file(run, out)))


def _recorded_token_file(run: str, out: Path) -> str:
    try:
        with open_registry(out) as registry:
            return str(registry.run(run).config.get("metrics", {}).get("token_file", ""))
    except (OutputError, RunNotFoundError):  # a run of another machine, asked by its address
        return ""


def processes(address: str, *, token: MetricsToken | None = None, timeout_s: float = ANSWER_S) -> list[LiveProcess]:
    """Every live process, as the driver at `address` lists them.

    Raises:
        UnreachableError: it does not answer, or is no driver.
        ConfigError: it wants another token.
    """
    answer = fetch(address, "/targets", timeout_s=timeout_s, who="the driver", token=token)
    try:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return [_process(entry, token) for entry in json.loads(answer.body)]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UnreachableError(
            f"{address} is no driver of a run",
            got=f"{type(error).__name__}: {error} in its answer to /targets",
            fix="give the address that the driver said when it began: metrics http://host:port/metrics",
        ) from None


def _process(entry: dict[str, object], token: MetricsToken | None) -> LiveProcess:
    labels, targets = entry["labels"], entry["targets"]
    assert isinstance(labels, dict) and isinstance(targets, list)
    return LiveProcess(
        role=str(labels["role"]),
        index=int(labels["index"]),
        instance=str(labels["instance"]),
        address=str(targets[0]),
        host=str(labels.get("__meta_truestep_host", "")),
        pid=int(labels.get("__meta_truestep_pid", 0)),
        token=token,
    )


def fetch(address: str, path: str, *, timeout_s: float, who: str, token: MetricsToken | None = None) -> Answer:
    """GET a page, whatever its status; no proxy takes part.

    Args:
        timeout_s: without a byte from the process, before it counts as not answering.
        who: is asked, for the error.
        token: to ask with.

    Raises:
        UnreachableError: it did not answer.
        ConfigError: it wants another token.
    """
    parts = urlsplit(f"//{address}")
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": token.header})
        response = connection.getresponse()
        answer = Answer(status=response.status, body=response.read(MAX_BYTES))
    except TimeoutError:
        raise UnreachableError(
            f"{who} at {address} did not answer within {timeout_s:g} s",
            fix="it may be stuck with the interpreter lock held; py-spy on its machine sees that",
        ) from None
    except (OSError, HTTPException) as error:
        raise UnreachableError(
            f"{who} at {address} does not answer",
            got=error or type(error).__name__,
            fix="it has ended, or cannot be reached from here: set metrics.host to an address that can be",
        ) from None
    finally:
        connection.close()
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise _refused(who, address, token)
    return answer


def _refused(who: str, address: str, token: MetricsToken | None) -> ConfigError:
    return ConfigError(
        f"{who} at {address} answers those only who bear the token of metrics",
        got="no token" if token is None else "another token",
        fix=f"name its file with --token-file or {TOKEN_FILE_VARIABLE}",
    )
