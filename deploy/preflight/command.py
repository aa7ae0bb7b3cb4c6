"""`truestep train ... --preflight`: every check of a run as one table, and nothing started."""

from __future__ import annotations

import json
from pathlib import Path

from common.errors import EXIT_BAD_INPUT, EXIT_FINISHED
from deploy.compose import compose
from deploy.config import RunConfig
from deploy.preflight.check import Check, Outcome, table
from deploy.preflight.preflight import checks_here, checks_of_cluster


def preflight(config: RunConfig, *, out: Path) -> list[Check]:
    """Every check of a run. A cluster is joined for its checks, and left again.

    Raises:
        UserError: the configuration does not fit the environment, or the cluster cannot be reached.
    """
    composition = compose("preflight", config)
    checks = checks_here(composition, out)
    if config.engine == "ray":
        from deploy.ray_launch import connect, disconnect, embeds

        if not embeds():
            connect()
            try:
                checks += checks_of_cluster(composition)
            finally:
                disconnect()
    return checks


def tell_checks(checks: list[Check], *, json_wanted: bool) -> int:
    """Print them; returns the exit code: 0 if the run could start, 2 if something is short."""
    short = sum(check.outcome is Outcome.SHORT for check in checks)
    if json_wanted:
        print(json.dumps({"checks": [check.to_plain() for check in checks]}), flush=True)
    else:
        print(table(checks))
        print(f"short in {short} of {len(checks)} checks" if short else f"all {len(checks)} are met", flush=True)
    return EXIT_BAD_INPUT if short else EXIT_FINISHED
