"""Where a run can be watched: its driver writes that into the record, and who wants to look on reads it there.

driver ──► event SERVING {address, lease} ──► driver_address(registry, run) ──► /metrics and /targets of the driver
"""

from __future__ import annotations

from common.errors import ConfigError
from common.process_identity import Liveness, ProcessIdentity
from common.runs import RunRegistry

SERVING = "SERVING"  # kind of the event; a run that serves nothing has none


def record_serving(registry: RunRegistry, run: str, *, address: str, lease: str) -> None:
    """Write down that the driver that holds `lease` serves `/metrics` and `/targets` at `address` ("host:port")."""
    registry.record_event(run, SERVING, {"address": address, "lease": lease})


def driver_address(registry: RunRegistry, run: str) -> str:
    """The "host:port" at which the driver of a live run serves; a driver on another host is taken to be alive.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: nobody drives it, its driver was killed, or it serves nothing.
    """
    record, owner = registry.run(run), registry.owner(run)
    if owner is None or owner.process.liveness(ProcessIdentity.current()) is Liveness.DEAD:
        raise ConfigError(
            f"run {run!r} is not running",
            got=record.status if owner is None else f"its driver, {owner.process.describe()}, is dead",
            allowed="a run that is being driven",
            fix=f"`truestep show {run}` tells what is on record, `truestep resume {run}` goes on with it",
        )
    served = [event.data for event in registry.events(run) if event.kind == SERVING]
    if not served or served[-1]["lease"] != owner.lease:
        raise ConfigError(
            f"run {run!r} serves no metrics",
            got="metrics.enabled = false, or its driver has only just begun",
            fix="give --address host:port, or run it with metrics.enabled = true",
        )
    return str(served[-1]["address"])
