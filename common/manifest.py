"""The manifest of a checkpoint: what it is, and size and SHA-256 of each of its files.

The encoding is canonical: `decode` encodes again what it read and compares bytes, so that no byte of a manifest can
change unseen. The SHA-256 of the manifest stands in it as well and serves as the digest of the whole checkpoint, since
it covers the digests of all files. Rules: fields are only added, with a default; `SCHEMA` grows when meaning changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from common import plain_json
from common.errors import CheckpointError

SCHEMA = 1
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
DOCUMENT_SUFFIX = ".msgpack"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.msgpack")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """What a manifest says, without the content.

    Attributes:
        name: of its directory; what `CheckpointStore.load` takes.
        update: the last update whose effect is in it.
        score: higher is better; None if it was not evaluated.
        digest: SHA-256 over its manifest, and so over all its content.
        num_bytes: of all files but the manifest.
    """

    name: str
    update: int
    score: float | None
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """Size and SHA-256 (hexadecimal) of one file."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest and its exact bytes.

    Attributes:
        update: the last update whose effect is in the checkpoint.
        score: higher is better; None if it was not evaluated.
        meta: plain values of the caller.
        files: each file beside the manifest.
        digest: SHA-256 of the manifest's body.
        encoded: the bytes of the file.
    """

    update: int
    score: float | None
    meta: dict[str, Any]
    files: dict[str, FileDigest]
    digest: str
    encoded: bytes

    def info(self, name: str) -> CheckpointInfo:
        """The summary, under the directory's `name`."""
        num_bytes = sum(file.num_bytes for file in self.files.values())
        return CheckpointInfo(name=name, update=self.update, score=self.score, digest=self.digest, num_bytes=num_bytes)


def describe(*, update: int, score: float | None, meta: Mapping[str, Any], parts: Mapping[str, bytes]) -> Manifest:
    """The manifest of `parts` (file name to content). Raises CheckpointError if `meta` is not plain."""
    if not 0 <= update < 2**63:
        raise CheckpointError("a checkpoint's update", got=update, allowed="0 to 2**63 - 1")
    files = {name: FileDigest(num_bytes=len(data), sha256=sha256(data).hexdigest()) for name, data in parts.items()}
    score = None if score is None or math.isnan(score) else float(score)
    body = {
        "schema": SCHEMA,
        "update": update,
        "score": score,
        "meta": dict(meta),
        "files": {name: {"bytes": file.num_bytes, "sha256": file.sha256} for name, file in files.items()},
    }
    try:
        encoded, digest = _encode(body)
    except plain_json.NotPlainError as error:
        raise CheckpointError(f"meta of checkpoint at update {update}", got=str(error)) from None
    return Manifest(update=update, score=score, meta=dict(meta), files=files, digest=digest, encoded=encoded)


def decode(path: Path, data: bytes) -> Manifest:
    """Parse and verify; `path` is for the message. Raises CheckpointError for anything that `describe` did not make."""
    try:
        body = plain_json.loads(data)["manifest"]
        schema = body["schema"]
        if type(schema) is int and schema > SCHEMA:
            raise CheckpointError(
                f"{path} is of a newer truestep", got=f"schema {schema}", allowed=f"up to {SCHEMA}", fix="upgrade"
            )
        encoded, digest = _encode(body)
        if encoded != data:
            raise CheckpointError(f"{path} is damaged", got="bytes that do not agree with the manifest's own digest")
        return _from_body(body, digest, encoded)
    except (plain_json.NotPlainError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or no manifest", got=f"{type(error).__name__}: {error}") from None


def _encode(body: Mapping[str, Any]) -> tuple[bytes, str]:
    digest = sha256(plain_json.dumps(body).encode("ascii")).hexdigest()
    return (plain_json.dumps({"manifest": body, "sha256": digest}) + "\n").encode("ascii"), digest


def _from_body(body: Mapping[str, Any], digest: str, encoded: bytes) -> Manifest:
    files = {
        name: FileDigest(num_bytes=int(file["bytes"]), sha256=str(file["sha256"]))
        for name, file in body["files"].items()
    }
    for name in files:
        if name != TENSORS and FILE_NAME.fullmatch(name) is None:  # a manifest must not point out of its directory
            raise ValueError(f"file name {name!r}")
    if TENSORS not in files:
        raise KeyError(TENSORS)
    return Manifest(
        update=int(body["update"]),
        score=None if body["score"] is None else float(body["score"]),
        meta=dict(body["meta"]),
        files=files,
        digest=digest,
        encoded=encoded,
    )
