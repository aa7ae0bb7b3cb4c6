"""The command `truestep doctor`: the machine, and with a RUN what of it can be reached; exit code 1 if anybody may."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console
from rich.table import Table

from common.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, UnreachableError
from common.process_identity import Liveness, ProcessIdentity
from deploy.cli import Doctor
from deploy.doctor.examination import Patient, examine
from deploy.doctor.exposure import Exposure
from deploy.doctor.machine import machine
from deploy.outputs import open_registry
from deploy.watched import address_of_run, processes, token_of_run

UNFOLDED = 10_000  # columns: no cell is broken over lines


def doctor(command: Doctor) -> int:
    """Look, print, and return the exit code.

    Raises:
        UserError: there is no such run, nobody drives it, it lives elsewhere, or it wants another token.
    """
    facts = machine(command.out)
    exposures = examine(_patient(command)) if command.run or command.address else []
    if command.json:
        print(json.dumps({"machine": facts, "sockets": [exposure.to_plain() for exposure in exposures]}), flush=True)
    else:
        _tell(command, facts, exposures)
    return EXIT_FAILED if any(exposure.open for exposure in exposures) else EXIT_FINISHED


def _patient(command: Doctor) -> Patient:
    """The run, which has to have a process on this machine."""
    driver = 0 if command.address else _driver(command)
    try:
        address = address_of_run(command.run, command.out, command.address)
        listed = processes(address, token=token_of_run(command.run, command.out, command.token_file))
    except (ConfigError, UnreachableError):
        if not driver or command.token_file is not None:
            raise
        listed = []  # it serves nothing, or wants a token that is not given: its sockets are seen all the same
    patient = Patient(driver=driver, listed=listed)
    if not driver and not patient.here:
        raise ConfigError(
            "no process of this run is on this machine",
            got=", ".join(sorted({process.host for process in listed})) or "no process at all",
            fix="call doctor on each of those machines, with --address host:port of the driver",
        )
    return patient


def _driver(command: Doctor) -> int:
    with open_registry(command.out) as registry:
        registry.run(command.run)
        owner = registry.owner(command.run)
    liveness = None if owner is None else owner.process.liveness(ProcessIdentity.current())
    if owner is None or liveness is not Liveness.ALIVE:
        raise ConfigError(
            f"run {command.run!r} is not driven on this machine",
            got="nobody drives it" if owner is None else f"its driver is {owner.process.describe()}",
            allowed="a run that is being driven here",
            fix="without RUN, `truestep doctor` tells of the machine alone",
        )
    return owner.process.pid


def _tell(command: Doctor, facts: dict[str, str], exposures: list[Exposure]) -> None:
    for name, value in facts.items():
        print(f"{name:<12} {value}")
    if not (command.run or command.address):
        return
    print(f"\n{_table(exposures)}\n")
    if opened := [exposure for exposure in exposures if exposure.open]:
        print(f"{len(opened)} of {len(exposures)} sockets are open to whoever reaches this machine's network")
    else:
        print(f"all {len(exposures)} sockets are protected", flush=True)


def _table(exposures: list[Exposure]) -> str:
    drawn = Table("process", "pid", "listens on", "serves", "protected by", "how that is known", box=None)
    drawn.pad_edge = False
    for each in exposures:
        where = f"{each.listener.address} port {each.listener.port}"
        protection = each.protection.value.upper() if each.open else each.protection.value
        drawn.add_row(each.process, str(each.listener.pid), where, each.serves, protection, each.how)
    text = StringIO()
    Console(file=text, width=UNFOLDED, color_system=None, highlight=False, markup=False).print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
