"""Flat records as plain documents: strict about classes, lenient about fields that only a newer release knows."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from common.errors import WireError
from common.wire import describe

Record = TypeVar("Record")


def record_to_plain(record: Any) -> dict[str, Any]:
    """A flat dataclass as a dict by field name, in the order of the fields."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def record_from_plain(kind: Callable[..., Record], plain: object, *, what: str) -> Record:
    """The inverse, strict: exact classes; a missing field takes its default or is an error; unknown ones are newer.

    Raises:
        WireError: names the field, its value and its type.
    """
    if type(plain) is not dict:
        raise WireError(f"{what}: no fields", got=describe(plain), allowed="a dict")
    expected = _field_classes(kind)
    missing = [name for name, (_, required) in expected.items() if required and name not in plain]
    if missing:
        raise WireError(f"{what}: missing {', '.join(missing)}", got=sorted(plain), allowed=list(expected))
    values = {name: plain[name] for name in expected if name in plain}
    for name, value in values.items():
        if type(value) is not expected[name][0]:
            raise WireError(f"{what}: {name}", got=describe(value), allowed=expected[name][0].__name__)
    return kind(**values)


@cache
def _field_classes(kind: Any) -> dict[str, tuple[type, bool]]:
    """Per field its class and whether it is required."""
    hints = typing.get_type_hints(kind)
    classes = {name: typing.get_origin(hint) or hint for name, hint in hints.items()}
    return {
        item.name: (classes[item.name], item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)
    }
