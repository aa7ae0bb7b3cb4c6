"""The few file operations that must survive a power cut, behind a seam so that tests can break each of them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """What a crash-safe store needs of a file system. Every method raises OSError when it fails."""

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents; nothing happens if it is there."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Create `path`, which must not exist, with `data`; on return the bytes are on stable storage."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; `target` must not exist. Lasting once the directory that holds it is synchronised."""
        ...

    def sync_directory(self, path: Path) -> None:
        """On return the names in `path` are on stable storage."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove `path` and everything in it."""
        ...

    def read(self, path: Path, *, most: int) -> bytes:
        """The whole of a regular file, or its first `most` + 1 bytes: more than `most` is then seen, and not held."""
        ...

    def names(self, path: Path) -> list[str]:
        """Names in the directory `path`, sorted."""
        ...


class RealFiles:
    """The file system of this host."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        with path.open("xb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def read(self, path: Path, *, most: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold us up
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return file.read(min(most, status.st_size) + 1)

    def names(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())


REAL_FILES: Files = RealFiles()
