"""The atomic checkpoint store: a directory of verified checkpoints, of which one killed writer can spoil none.

    save:   encode -> .writing-<name>-<writer>/ (each file written and synced, manifest last) -> sync -> rename -> sync
    load:   manifest (byte-exact, names every file by size and SHA-256) -> files -> tensors
    retain: rename to .removing-<name> -> remove, after a successful save only

A directory under a final name (`update-000000040`) was complete before it got that name. Saving an update again makes
`update-000000040.1` beside it, so that there is no moment without a good one. Tensors are safetensors, the manifest is
strict JSON, documents are bytes for the caller's own codec: no code runs on load. docs/checkpoints.md has the format.

One writer at a time (the owner of the run in the registry); any number of readers.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from common import manifest as manifests
from common.errors import CheckpointError
from common.files import REAL_FILES, Files
from common.manifest import DOCUMENT_SUFFIX, MANIFEST, TENSORS, CheckpointInfo, Manifest
from common.process_identity import Liveness, ProcessIdentity

WRITING = ".writing-"
REMOVING = ".removing-"
MOST_MANIFEST_BYTES = 64 * 2**20
NAME = re.compile(r"update-(\d{9,19})(?:\.(\d{1,6}))?")
DOCUMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
DTYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)
ADVICE = {
    errno.ENOSPC: "free space on that file system or lower keep_last",
    errno.EDQUOT: "the quota is used up: free space or lower keep_last",
    errno.EROFS: "the file system is mounted read-only: remount it or choose another output directory",
    errno.EIO: "the device reports a fault: look at the kernel log and move the output directory",
    errno.EACCES: "give this user write permission there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read whole and verified.

    Attributes:
        info: what it is and how good.
        tensors: name to array, writable and owned by the caller.
        documents: name to bytes, as given to `save`.
        meta: the plain values given to `save`.
    """

    info: CheckpointInfo
    tensors: dict[str, NDArray[Any]]
    documents: dict[str, bytes]
    meta: dict[str, Any]


class CheckpointStore:
    """Checkpoints of one run in `directory`.

    Args:
        directory: made by the first save; holds nothing else.
        keep_last: this many of the highest updates are kept, and the best one.
        files: the file system; tests inject faults here.
    """

    def __init__(self, directory: Path, *, keep_last: int = 3, files: Files = REAL_FILES) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last: got {keep_last}, allowed: at least 1")
        self.directory = directory
        self._keep_last = keep_last
        self._files = files
        self._lock = threading.Lock()
        self._writer = ProcessIdentity.current()

    def save(
        self,
        update: int,
        *,
        tensors: Mapping[str, NDArray[Any]],
        documents: Mapping[str, bytes],
        meta: Mapping[str, Any],
        score: float | None,
    ) -> CheckpointInfo:
        """Write a checkpoint; on return it is on stable storage and older ones beyond the retention are gone.

        The caller's arrays are copied before the first write and never kept. `score` makes it a candidate for the
        best (higher is better; NaN counts as no score). Peak memory is about twice the size of the tensors.

        Raises CheckpointError for values that cannot be stored (before anything is written) and for a failing file
        system; then every earlier checkpoint is as it was. If only removing old ones failed, the message says so and
        the new one is good.
        """
        parts = _encode_parts(tensors, documents)
        described = manifests.describe(update=update, score=score, meta=meta, parts=parts)
        with self._lock:
            self._clean_stale()
            name = self._free_name(update)
            self._write(name, {**parts, MANIFEST: described.encoded})
            self._retain(name)
        return described.info(name)

    def newest_good(self, on_skipped: Callable[[str, CheckpointError], None]) -> Checkpoint | None:
        """The newest checkpoint that is complete and verified; None only if there is not a single one, good or bad.

        `on_skipped` is told the name and the fault of each newer one that was passed over. Raises CheckpointError if
        there are checkpoints and none is good: a run must not silently start from nothing.
        """
        names = self.names()
        for name in reversed(names):
            try:
                return self.load(name)
            except CheckpointError as error:
                on_skipped(name, error)
        if not names:
            return None
        raise CheckpointError(
            f"no good checkpoint in {self.directory}",
            got=f"{len(names)} damaged or incomplete: {', '.join(names)}",
            fix="restore one from a backup, or move the directory away to start from nothing",
        )

    def load(self, name: str) -> Checkpoint:
        """Read and verify one checkpoint by name. Raises CheckpointError naming the file and the fault."""
        described = self._manifest(name)
        parts = {file: self._verified(name, file, described) for file in described.files}
        return Checkpoint(
            info=described.info(name),
            tensors=_decode_tensors(self.directory / name / TENSORS, parts[TENSORS]),
            documents={file.removesuffix(DOCUMENT_SUFFIX): data for file, data in parts.items() if file != TENSORS},
            meta=described.meta,
        )

    def names(self) -> list[str]:
        """Names of all checkpoints, oldest first, whether good or damaged."""
        found = [name for name in self._list() if NAME.fullmatch(name)]
        return sorted(found, key=_order)

    def infos(self) -> list[CheckpointInfo]:
        """All checkpoints with a good manifest, oldest first. Cheap: tensors are not read, so not verified."""
        infos = []
        for name in self.names():
            try:
                infos.append(self._manifest(name).info(name))
            except CheckpointError:
                continue  # named by newest_good and load; here it has nothing to list
        return infos

    def best(self) -> CheckpointInfo | None:
        """The one with the highest score, the newest of equals; None if none has a score."""
        return _best(self.infos())

    def discard_after(self, update: int) -> list[str]:
        """Remove all checkpoints of later updates, the best included; returns their names.

        For a resume or rollback to `update`: what lies behind it belongs to a line of training that was given up (or
        is damaged) and must not be what the next resume finds as newest.
        """
        with self._lock:
            later = [name for name in self.names() if _order(name)[0] > update]
            for name in reversed(later):  # newest first: a kill on the way leaves a run that is whole
                self._remove(name)
            return later

    def clean_stale(self) -> list[str]:
        """Remove what dead writers left behind (never a checkpoint); returns the names. `save` does it as well."""
        with self._lock:
            return self._clean_stale()

    def _write(self, name: str, parts: Mapping[str, bytes]) -> None:
        aside = self.directory / f"{WRITING}{name}-{_token(self._writer)}"
        file, size = aside, 0
        try:
            self._files.make_directory(aside)
            for part, data in parts.items():
                file, size = aside / part, len(data)
                self._files.write(file, data)
            file, size = aside, sum(map(len, parts.values()))
            self._files.sync_directory(aside)
            file = self.directory / name
            self._files.rename(aside, file)
            self._files.sync_directory(self.directory)
        except OSError as error:
            raise self._save_failed(name, file, size, error, self._remove_aside(aside)) from error

    def _save_failed(self, name: str, file: Path, size: int, error: OSError, left: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {name} could not be saved: writing {size} bytes to {file} failed",
            got=f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}",
            fix=f"{ADVICE.get(error.errno or 0, 'look at the file system')}; earlier checkpoints are as they were",
            detail=left,
        )

    def _remove_aside(self, aside: Path) -> str:
        """Give the space back. A failure here is told in the detail of the error that is being raised."""
        try:
            if aside.name in self._files.names(self.directory):
                self._files.remove_tree(aside)
        except OSError as error:
            return f"{aside} could not be removed either ({error}); the next save tries again"
        return ""

    def _retain(self, saved: str) -> None:
        infos = self.infos()
        best = _best(infos)
        keep = {saved, *(info.name for info in _newest_of_each_update(infos)[-self._keep_last :])}
        if best is not None:
            keep.add(best.name)
        for info in infos:  # one whose manifest cannot be read stays: the fault may pass, or be worth a look
            if info.name not in keep:
                self._remove(info.name, f"checkpoint {saved} is saved and good, but ")

    def _remove(self, name: str, context: str = "") -> None:
        """Take the name away first, so that a directory under a final name is always whole."""
        hidden = self.directory / f"{REMOVING}{name}"
        try:
            self._files.rename(self.directory / name, hidden)
            self._files.remove_tree(hidden)
        except OSError as error:
            raise CheckpointError(
                f"{context}checkpoint {name} in {self.directory} could not be removed",
                got=str(error),
                fix=ADVICE.get(error.errno or 0, "look at the file system"),
            ) from error

    def _clean_stale(self) -> list[str]:
        stale = [name for name in self._list() if name.startswith(REMOVING) or self._is_dead_writing(name)]
        for name in stale:
            try:
                self._files.remove_tree(self.directory / name)
            except OSError as error:
                raise CheckpointError(
                    f"{self.directory / name}, left by a dead writer, could not be removed",
                    got=str(error),
                    fix=ADVICE.get(error.errno or 0, "remove it by hand"),
                ) from error
        return stale

    def _is_dead_writing(self, name: str) -> bool:
        if not name.startswith(WRITING):
            return False
        if name.endswith(f"-{_token(self._writer)}"):
            return True  # ours, and saves are one at a time: an earlier one failed and could not clean up
        return _writer_is_dead(name, self._writer)

    def _free_name(self, update: int) -> str:
        revisions = [revision for number, revision in map(_order, self.names()) if number == update]
        name = f"update-{update:09d}"
        return f"{name}.{max(revisions) + 1}" if revisions else name

    def _list(self) -> list[str]:
        try:
            return self._files.names(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"checkpoint directory {self.directory} cannot be listed", got=str(error)) from error

    def _manifest(self, name: str) -> Manifest:
        if NAME.fullmatch(name) is None:
            raise CheckpointError("not the name of a checkpoint", got=repr(name), allowed="update-000000040 or so")
        path = self.directory / name / MANIFEST
        described = manifests.decode(path, self._read(path, most=MOST_MANIFEST_BYTES))
        if described.update != _order(name)[0]:
            raise CheckpointError(f"{path} describes another checkpoint", got=f"update {described.update}")
        return described

    def _verified(self, name: str, file: str, described: Manifest) -> bytes:
        path = self.directory / name / file
        expected = described.files[file]
        data = self._read(path, most=expected.num_bytes)
        if len(data) != expected.num_bytes:
            raise CheckpointError(
                f"{path} is cut short or grown",
                got=f"{'more' if len(data) > expected.num_bytes else len(data)} bytes",
                allowed=f"{expected.num_bytes}",
            )
        digest = sha256(data).hexdigest()
        if digest != expected.sha256:
            raise CheckpointError(f"{path} is damaged", got=f"sha256 {digest}", allowed=expected.sha256)
        return data

    def _read(self, path: Path, *, most: int) -> bytes:
        """No more than a stranger may make us hold: the size comes first, then memory."""
        try:
            return self._files.read(path, most=most)
        except (MemoryError, OverflowError):
            raise CheckpointError(
                f"{path} does not fit this machine's memory", got=f"{most} bytes", fix="see who wrote its manifest"
            ) from None
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing", fix="the checkpoint is incomplete; use another") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read", got=str(error)) from error


def _newest_of_each_update(infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Of checkpoints in order, those that no later revision of the same update replaces."""
    return list({info.update: info for info in infos}.values())


def _best(infos: list[CheckpointInfo]) -> CheckpointInfo | None:
    scored = [info for info in _newest_of_each_update(infos) if info.score is not None]
    return max(reversed(scored), key=lambda info: info.score or 0.0, default=None)


def _order(name: str) -> tuple[int, int]:
    match = NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1]), int(match[2] or 0)


def _token(writer: ProcessIdentity) -> str:
    return f"{writer.pid}.{writer.start_ticks}.{sha256(writer.boot_id.encode()).hexdigest()[:8]}"


def _writer_is_dead(name: str, own: ProcessIdentity) -> bool:
    pid, _, rest = name.rpartition("-")[2].partition(".")
    ticks, _, _ = rest.partition(".")
    if not (pid.isdecimal() and ticks.isdecimal()):
        return True
    writer = ProcessIdentity(
        host=own.host,
        boot_id=own.boot_id,
        pid_namespace=own.pid_namespace,
        pid=int(pid),
        start_ticks=int(ticks),
    )
    same_boot = name.endswith(f"-{_token(writer)}")
    return not same_boot or writer.liveness(own) is Liveness.DEAD


def _encode_parts(tensors: Mapping[str, NDArray[Any]], documents: Mapping[str, bytes]) -> dict[str, bytes]:
    parts = {TENSORS: _encode_tensors(tensors)}
    for name, data in documents.items():
        if DOCUMENT_NAME.fullmatch(name) is None:
            raise CheckpointError(
                "a document's name becomes a file name", got=repr(name), allowed="letters, digits, _ and -"
            )
        parts[f"{name}{DOCUMENT_SUFFIX}"] = bytes(data)
    return parts


def _encode_tensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    plain = {}
    for name, tensor in tensors.items():
        if name == "__metadata__" or not isinstance(tensor, np.ndarray) or tensor.dtype.name not in DTYPES:
            kind = f"dtype {tensor.dtype}" if isinstance(tensor, np.ndarray) else type(tensor).__name__
            raise CheckpointError(f"tensor {name!r} cannot be stored", got=kind, allowed=f"{sorted(DTYPES)}")
        # safetensors writes the raw buffer: without this a transposed array would come back scrambled
        plain[name] = np.asarray(tensor, order="C")
    return bytes(safetensors.numpy.save(plain))


def _decode_tensors(path: Path, data: bytes) -> dict[str, NDArray[Any]]:
    try:
        loaded = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not in safetensors format", got=str(error)) from None
    return {name: array if array.flags.writeable else array.copy() for name, array in loaded.items()}
