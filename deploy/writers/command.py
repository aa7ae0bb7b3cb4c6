"""The command `truestep export`."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

from common.errors import EXIT_FINISHED
from deploy.cli import Export
from deploy.writers.export import export_run


def export(command: Export) -> int:
    """Write, and say where; returns the exit code."""
    with redirect_stdout(sys.stderr):  # W&B says what it does
        done = export_run(command.run, command.to, out=command.out, directory=command.dir, project=command.project)
    if command.json:
        print(json.dumps(done.to_plain()))
    else:
        print(f"exported     {done.updates:,} updates and {done.evaluations:,} evaluations of {done.run}")
        print(f"to           {done.where}")
        if done.next:
            print(f"go on with   {done.next}")
    return EXIT_FINISHED
