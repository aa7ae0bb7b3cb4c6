"""The registry's rows of one run, handed to a writer after the fact: what a live writer missed, or never saw.

An export goes to a place of its own and not among what a live writer of the run has written, so it holds nothing that
was undone, and may be made of a run that is being driven. Event files made again take the place of those before;
W&B gets a new run each time, since it never forgets a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from common.errors import OutputError
from common.runs import RunRecord
from deploy.config import parse_config
from deploy.outputs import open_registry
from deploy.writers.opening import TENSORBOARD, WANDB, Target, config_text, unique_id
from deploy.writers.scalars import Row, rows
from deploy.writers.tensorboard_writer import TensorBoardWriter
from deploy.writers.wandb_writer import WandbWriter
from deploy.writers.writer import NOTHING_STANDS, Writer

UPLOAD_S = 600.0  # for W&B to take all of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        run: its name.
        to: tensorboard or wandb.
        updates: rows of updates.
        evaluations: rows of evaluations.
        where: directory or address.
        next: the command to go on with; "" where an address is all it takes.
    """

    run: str
    to: Target
    updates: int
    evaluations: int
    where: str
    next: str

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def export_run(
    run: str, to: Target, *, out: Path | str = "runs", directory: Path | None = None, project: str = ""
) -> Exported:
    """Write every row on record.

    Args:
        run: its name.
        to: whom.
        out: the output directory it lies in.
        directory: where files go; `export` in the run's own if None.
        project: of W&B; as the run's configuration says if empty.

    Raises:
        UserError: no such run, the package is missing, W&B has no login, or the files cannot be written.
        OutputError: W&B did not take them.
    """
    out = Path(out)
    (TENSORBOARD if to == "tensorboard" else WANDB).require()
    with open_registry(out) as registry:
        record, updates, evaluations = registry.run(run), registry.updates(run), registry.evaluations(run)
    place = directory or out / run / "export"
    write = _to_tensorboard if to == "tensorboard" else _to_wandb
    try:
        where, command = write(record, place, project, rows(updates, evaluations))
    except OSError as error:
        fix = "choose another place with --dir"
        raise OutputError(f"run {run!r} cannot be exported", got=error, fix=fix) from error
    return Exported(run=run, to=to, updates=len(updates), evaluations=len(evaluations), where=where, next=command)


def _to_tensorboard(record: RunRecord, place: Path, project: str, lines: Iterable[Row]) -> tuple[str, str]:
    folder = place / "tensorboard"
    _write(TensorBoardWriter(folder / record.run, config_text(record), stands=NOTHING_STANDS), lines)
    return str(folder / record.run), f"tensorboard --logdir {folder}"


def _to_wandb(record: RunRecord, place: Path, project: str, lines: Iterable[Row]) -> tuple[str, str]:
    writer = WandbWriter.begin(
        project=project or parse_config(record.config).writers.wandb_project,
        unique=f"{unique_id(record)}-export-{token_hex(3)}",
        name=record.run,
        directory=place,
        config=record.config,
        finish_s=UPLOAD_S,
    )
    _write(writer, lines)
    return writer.where, "" if writer.is_online else f"wandb sync {writer.where}"


def _write(writer: Writer, lines: Iterable[Row]) -> None:
    try:
        for step, values in lines:
            writer.scalars(step, values)
    finally:
        writer.close()
