"""The output directory: the run registry, and one directory per run."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

from common.checkpoints import CheckpointStore
from common.errors import OutputError
from common.runs import RunRegistry

REGISTRY_FILE = "runs.sqlite"


def open_registry(out: Path, *, create: bool = False, write: bool = False) -> RunRegistry:
    """The registry of an output directory, read-only unless asked. Raises OutputError where there is none."""
    if not create and not (out / REGISTRY_FILE).is_file():
        raise OutputError("no runs there", got=out, allowed="a directory that `truestep train --out` wrote to")
    if create or write:
        _check_writable(out)
    return RunRegistry.open(out / REGISTRY_FILE, read_only=not (create or write))


def _check_writable(out: Path) -> None:
    probe = out / f".writable-{token_hex(4)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OutputError(
            "output directory cannot be written", got=f"{out} ({error.strerror})", fix="choose another with --out"
        ) from None


def checkpoint_store(out: Path, run: str, *, keep_last: int = 3) -> CheckpointStore:
    """The checkpoints of a run."""
    return CheckpointStore(out / run / "checkpoints", keep_last=keep_last)
