"""Pictures as PNG files: the only place that knows Pillow, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError, OutputError


class PngFiles:
    """`00000.png`, `00001.png` ... in a directory of their own, made by `open`; see `actors.replay.Pictures`."""

    def __init__(self, directory: Path, image: Any) -> None:
        self.directory = directory
        self.count = 0
        self._image = image

    @classmethod
    def open(cls, directory: Path) -> PngFiles:
        """In a new or empty directory.

        Raises:
            ConfigError: Pillow is not installed.
            OutputError: the directory holds something already, or cannot be made.
        """
        image = _pillow()
        _make_empty(directory)
        return cls(directory, image)

    def begin(self) -> None:
        """Remove what was written."""
        for number in range(self.count):
            self._path(number).unlink()
        self.count = 0

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Write one more. Raises OutputError."""
        path = self._path(self.count)
        try:
            self._image.fromarray(picture).save(path)
        except OSError as error:
            raise OutputError("a picture cannot be written", got=f"{path} ({error.strerror or error})") from None
        self.count += 1

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:05}.png"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError(
            "--frames needs Pillow", got=str(error), fix="install the extra: pip install 'truestep[render]'"
        ) from None
    return Image


def _make_empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = min(directory.iterdir(), default=None)
    except OSError as error:
        raise OutputError("--frames: the directory cannot be made", got=f"{directory} ({error.strerror})") from None
    if held is not None:
        raise OutputError(
            "--frames: pictures of two episodes would mix",
            got=f"{directory}, which holds {held.name}",
            allowed="a new or an empty directory",
        )
