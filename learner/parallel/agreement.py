"""What ranks must have in common before they may compute together, and who differs in what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from common.errors import RunFailedError
from common.wire import pack_plain, unpack_plain

MAX_BYTES = 2**26


def describe(plain: dict[str, Any]) -> bytes:
    """A description as bytes that are equal if and only if the descriptions are."""
    return pack_plain(plain, what="description of a rank", max_bytes=MAX_BYTES)


def check_alike(ranks: Sequence[int], descriptions: Sequence[bytes]) -> None:
    """Refuse to form a group of ranks that are not alike.

    The description that most ranks have is the right one (of several, that of the lowest place). Every rank finds the
    same difference.

    Raises:
        RunFailedError: naming the first rank that differs, the first thing it differs in, and both values.
    """
    reference, _ = Counter(descriptions).most_common(1)[0]
    for rank, description in zip(ranks, descriptions, strict=True):
        if description == reference:
            continue
        theirs, ours = _read(description), _read(reference)
        path, got, allowed = next(differences(theirs, ours), ("bytes", len(description), len(reference)))
        model = ranks[descriptions.index(reference)]
        raise RunFailedError(
            f"learner rank {rank} is not like rank {model}: {path} differs",
            got=f"{got!r:.200}",
            allowed=f"{allowed!r:.200}",
            fix="start every rank from the same configuration, code and state",
        )


def differences(got: Any, allowed: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two plain values differ, first to last: path, one, the other."""
    if isinstance(got, dict) and isinstance(allowed, dict):
        for key in dict.fromkeys([*allowed, *got]):
            yield from differences(got.get(key), allowed.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(got, list) and isinstance(allowed, list) and got != allowed:
        for i in range(max(len(got), len(allowed))):
            one, other = (each[i] if i < len(each) else None for each in (got, allowed))
            yield from differences(one, other, f"{path}[{i}]")
    elif got != allowed:
        yield path, got, allowed


def _read(description: bytes) -> Any:
    return unpack_plain(description, what="description of a rank", max_bytes=MAX_BYTES)
