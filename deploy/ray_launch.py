"""Starting and joining Ray: embedded when no cluster is named, with a logical CPU for each process of the run."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from secrets import token_hex

import ray

from common.errors import OutputError, RunFailedError

MIN_OBJECT_STORE_BYTES = 256 * 2**20
CONNECT_S = 5.0
QUIET = {  # servers of Ray's own metrics, which know no token: nobody scrapes an embedded Ray
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",  # no port at all: neither server can be turned off, and each goes on without one
    "DASHBOARD_METRIC_PORT": "-1",
}


def embeds() -> bool:
    """Whether `connect` would start a Ray of its own."""
    return not ray.is_initialized() and not os.environ.get("RAY_ADDRESS", "")


def store_bytes(object_store_bytes: int) -> int:
    """Size of the object store of an embedded Ray, for fragments of so many bytes at once."""
    return max(MIN_OBJECT_STORE_BYTES, object_store_bytes)


def connect(*, num_processes: int = 1, num_spare: int = 0, object_store_bytes: int = 0) -> bool:
    """Join the cluster named by RAY_ADDRESS, or start an embedded one; True if embedded.

    An embedded node counts processes, not cores: each of ours is granted its logical CPU whatever the machine has, and
    so are `num_spare` more, so that a replacement starts before the CPU of the process it replaces is free again. What
    a cluster has is looked at by deploy.preflight.

    Raises:
        RunFailedError: the cluster cannot be reached or started.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # ours are handled, or their process was given up
    address = os.environ.get("RAY_ADDRESS", "")
    where = f"cluster at {address}" if address else "embedded Ray"
    if address:
        _check_reachable(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                _start_embedded(num_processes + num_spare, object_store_bytes)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise RunFailedError(f"{where} cannot be used", got=error, fix="see the logs of the Ray session") from error
    return not address


def _start_embedded(num_cpus: int, object_store_bytes: int) -> None:
    """With a token of its own: Ray's ports listen on every address of the machine, whoever may reach them.

    RAY_AUTH_MODE is left to Ray, which switches tokens on unless the user has said otherwise; a token in the
    environment keeps it from writing one into the home directory of the user. What knows no token is not started.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if os.environ.get("RAY_AUTH_MODE", "token") == "token":
        os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        address="local",
        num_cpus=max(num_cpus, os.cpu_count() or 1),
        object_store_memory=store_bytes(object_store_bytes),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _check_reachable(address: str) -> None:
    """Ray itself tries for a minute and more; a host:port that nobody listens on is told at once."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise OutputError(
            "no Ray cluster answers at RAY_ADDRESS",
            got=f"{address} ({error})",
            allowed="host:port of a running head node",
            fix="start the cluster, or unset RAY_ADDRESS to have Ray embedded",
        ) from None


def disconnect() -> None:
    """Leave the cluster; an embedded one is shut down."""
    ray.shutdown()
