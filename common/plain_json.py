"""JSON for the record: strict, lossless, and the same bytes for the same value.

Plain JSON has no NaN and no infinity, and Python's default writes tokens that other readers refuse. Here a float
that is not finite travels as `{"$float": "nan"}` (`"inf"`, `"-inf"`), which every reader accepts and `loads` undoes.
What JSON would change silently is refused: keys that are not text, numpy scalars, bytes, objects. Tuples become lists.
"""

from __future__ import annotations

import json
import math
from typing import Any

FLOAT_TAG = "$float"
MAX_DEPTH = 64


class NotPlainError(ValueError):
    """A value that plain JSON cannot hold, or text that is not plain JSON. The caller adds what it belongs to."""

    def __init__(self, where: str, got: str, allowed: str) -> None:
        self.where = where
        self.got = got
        self.allowed = allowed
        super().__init__(f"{where}: got {got}, allowed: {allowed}")


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """`value` as compact ASCII JSON. Raises `NotPlainError` naming the path of what cannot be represented.

    >>> dumps({"clip": float("inf"), "sizes": (64, 64)})
    '{"clip":{"$float":"inf"},"sizes":[64,64]}'
    """
    return json.dumps(_encode(value, "$", 0), sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The inverse of `dumps`. Raises `NotPlainError` for anything that is not strict JSON in UTF-8."""
    try:
        return json.loads(text, object_hook=_decode_object, parse_float=_finite, parse_constant=_refuse_constant)
    except NotPlainError:
        raise
    except (ValueError, RecursionError) as error:
        raise NotPlainError("$", f"text that is no JSON ({error})", "strict JSON in UTF-8") from None


def _encode(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotPlainError(where, f"nesting deeper than {MAX_DEPTH}", "a tree of plain values")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {FLOAT_TAG: repr(value)}
    if kind in (list, tuple):
        return [_encode(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if kind is dict:
        return {_key(key, where): _encode(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise NotPlainError(where, kind.__name__, "dict, list, tuple, str, int, float, bool, None")


def _key(key: Any, where: str) -> str:
    if type(key) is not str or key == FLOAT_TAG:
        raise NotPlainError(where, f"key {key!r}", f"text other than {FLOAT_TAG!r}")
    return key


def _decode_object(item: dict[str, Any]) -> Any:
    if FLOAT_TAG not in item:
        return item
    text = item[FLOAT_TAG]
    if len(item) != 1 or text not in ("nan", "inf", "-inf"):
        raise NotPlainError("$", f"object {item!r}", f'{{"{FLOAT_TAG}": "nan", "inf" or "-inf"}}')
    return float(text)


def _refuse_constant(name: str) -> Any:
    raise NotPlainError("$", f"the token {name}", f'{{"{FLOAT_TAG}": ...}} for floats that are not finite')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotPlainError("$", f"the number {text[:20]}, which no double holds", "finite numbers")
    return value
