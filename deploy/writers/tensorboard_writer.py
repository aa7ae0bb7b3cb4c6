"""TensorBoard's event files. The only file that knows the package `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

NAME = "TensorBoard"
FLUSH_S = 5
MAX_WAITING = 10_000  # events that TensorBoard's own thread may hold back


def require() -> None:
    """Raises ConfigError where the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        fix = "pip install 'truestep[tensorboard]', or switch writers.tensorboard off"
        raise ConfigError("TensorBoard's files cannot be written", got=str(error), fix=fix) from None


class TensorBoardWriter:
    """Event files of one run in one directory.

    A file is begun with the first row. Every undoing begins another one, whose head tells TensorBoard to drop what lies
    behind that step (`purge_step`), in earlier files too: so a directory goes on over resumes and rollbacks.
    Values are float32 there, NaN and infinities included.

    Args:
        directory: made if it is not there.
        config: the run's configuration as text, shown at the head of each stint of driving.
        stands: rows behind this step that lie there already are dropped; None: there are none.
    """

    def __init__(self, directory: Path, config: str, *, stands: int | None = None) -> None:
        self._directory = directory
        self._config = config
        self._stands = stands
        self._open: SummaryWriter | None = None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """All of them as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        files: Any = self._opened().file_writer  # an attribute that torch declares as None
        files.add_summary(summary, step)

    def undo_after(self, step: int) -> None:
        """The next file begins with that."""
        self.close()
        self._stands = step

    def close(self) -> None:
        """All that was taken is on disk."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _opened(self) -> SummaryWriter:
        if self._open is None:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if self._stands is None else self._stands + 1
            self._open = SummaryWriter(
                str(self._directory), purge_step=purge, max_queue=MAX_WAITING, flush_secs=FLUSH_S
            )
            if self._config:
                self._open.add_text("config", self._config, max(0, self._stands or 0))
            self._config = ""
        return self._open
