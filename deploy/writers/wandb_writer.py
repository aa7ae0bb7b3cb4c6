"""Weights & Biases. The only file that knows the package `wandb`.

W&B's own means apply: WANDB_MODE (online, offline, disabled), WANDB_API_KEY, WANDB_ENTITY, WANDB_SILENT and the rest.

A history of W&B only grows; going back in it (`resume_from`) is a preview that W&B grants on request and not with an
axis of one's own. So what a rollback or a resume takes back stays there. It is marked: a row `undone/after_env_steps`
where that happens, and `run/term` is higher behind a rollback. A history without it is made by `truestep export`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError, OutputError

if TYPE_CHECKING:
    import wandb

NAME = "W&B"
AXIS = "env_steps"
UNDONE = "undone/after_env_steps"
NOT_FINITE = "not_finite/"
FINISH_S = 25.0  # for the upload at the end; what is left then lies in W&B's directory, for `wandb sync`
NO_ACCOUNT = ("offline", "dryrun", "disabled")  # modes in which W&B asks for no key


def require() -> None:
    """Raises ConfigError where the package is missing, or nobody is logged in: W&B would ask amid the run."""
    try:
        import wandb
    except ImportError as error:
        fix = "pip install 'truestep[wandb]', or switch writers.wandb off"
        raise ConfigError("W&B cannot be written to", got=str(error), fix=fix) from None
    if wandb.setup().settings.mode in NO_ACCOUNT or wandb.login(prompt=False, verify=False):
        return
    fix = "wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline to upload later"
    raise ConfigError("W&B cannot be written to", got="nobody is logged in", fix=fix)


class WandbWriter:
    """One run of W&B, with environment steps as the axis of every chart.

    A value that is not finite is left out of its row, where it would spoil minima, maxima and the table of runs; in its
    place the row has `not_finite/<name>` = 1.

    Args:
        run: W&B's, begun.
    """

    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    @classmethod
    def begin(
        cls,
        *,
        project: str,
        unique: str,
        name: str,
        directory: Path,
        config: Mapping[str, Any],
        finish_s: float = FINISH_S,
    ) -> WandbWriter:
        """Begin W&B's run, or go on with it. May take as long as the network does, a minute and a half at most.

        Args:
            project: of W&B.
            unique: W&B's id of the run, the same over resumes.
            name: shown.
            directory: its files lie in `wandb` below.
            config: the run's configuration.
            finish_s: for the upload at the end.

        Raises:
            OutputError: W&B refuses, or does not answer.
        """
        import wandb

        directory.mkdir(parents=True, exist_ok=True)
        try:
            run = wandb.init(
                project=project,
                id=unique,
                name=name,
                resume="allow",
                dir=str(directory),
                config=dict(config),
                settings=wandb.Settings(console="off", finish_timeout=finish_s, finish_timeout_raises=True),
            )
        except wandb.Error as error:
            fix = "see that the network and `wandb login` are well, or set WANDB_MODE=offline to upload later"
            raise OutputError("W&B did not take the run", got=f"{type(error).__name__}: {error}", fix=fix) from error
        run.define_metric(AXIS)
        run.define_metric("*", step_metric=AXIS)
        return cls(run)

    @property
    def is_online(self) -> bool:
        """Whether rows go to W&B, not only to its files."""
        return not (self._run.offline or self._run.disabled)

    @property
    def where(self) -> str:
        """Address of the run, or the directory of its files where it is offline."""
        return str((self.is_online and self._run.url) or Path(self._run.dir).parent)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One row of the history."""
        self._run.log({AXIS: step, **_finite(values)})

    def undo_after(self, step: int) -> None:
        """A row that says so."""
        self._run.log({AXIS: max(0, step), UNDONE: step})

    def close(self) -> None:
        """Upload what is left. Raises OutputError if that takes too long; the rest lies in W&B's files."""
        try:
            self._run.finish()
        except TimeoutError as error:
            fix = f"wandb sync {Path(self._run.dir).parent}"
            raise OutputError("W&B has not taken all rows in time", got=error, fix=fix) from error


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {
        name if math.isfinite(value) else f"{NOT_FINITE}{name}": value if math.isfinite(value) else 1.0
        for name, value in values.items()
    }
