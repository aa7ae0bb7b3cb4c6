"""Every configuration key as Markdown, read off the records themselves: `python -m deploy.config_reference`.

With the path of a file, the tables replace what stands between its markers; without one they are printed.

A key's meaning is its entry under `Attributes:` in the docstring of its record; a key without one is an error, so
that none can be added undocumented.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from deploy.config import RunConfig

BEGIN, END = "<!-- keys: python -m deploy.config_reference -->\n", "\n<!-- end of keys -->"
ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One configuration key.

    Attributes:
        path: as in `--set path=value`.
        kind: values that it takes.
        default: as TOML; "" where it is not set.
        meaning: one paragraph.
    """

    path: str
    kind: str
    default: str
    meaning: str


def main(arguments: list[str]) -> None:
    """Print the tables, or renew them in the file named."""
    if not arguments:
        print(markdown())
        return
    file = Path(arguments[0])
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(document: str) -> str:
    """`document` with today's tables between its markers. Raises ValueError where a marker is missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables; mark it with {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}{markdown()}{end}{after}"


def markdown() -> str:
    """The tables of all keys, one a section. Ends without a newline."""
    keys = [*keys_of(RunConfig)]
    parts = ["### The run", table(key for key in keys if "." not in key.path)]
    for field in dataclasses.fields(RunConfig):
        section = record_of(field)
        if section is not None:
            own = (key for key in keys if key.path.startswith(f"{field.name}."))
            parts += [f"### `[{field.name}]`", summary(section), table(own)]
    return "\n\n".join(parts)


def keys_of(record: Any, prefix: str = "") -> Iterator[Key]:
    """Every key below a record, depth first, in the order of the fields. Raises KeyError for an undocumented one."""
    meanings, hints = attributes(record), get_type_hints(record)
    for field in dataclasses.fields(record):
        section = record_of(field)
        if section is not None:
            yield from keys_of(section, f"{prefix}{field.name}.")
        else:
            yield Key(
                path=prefix + field.name,
                kind=kind_words(hints[field.name]),
                default=toml(field.default if field.default_factory is MISSING else field.default_factory()),
                meaning=meanings[field.name],
            )


def record_of(field: dataclasses.Field[Any]) -> Any:
    """The record that a field is a section of, or None for a key of its own."""
    factory: Any = field.default_factory
    return factory if dataclasses.is_dataclass(factory) else None


def attributes(record: Any) -> dict[str, str]:
    """Name to meaning, from the `Attributes:` section of a record's docstring."""
    section = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        entry = ENTRY.fullmatch(line[4:]) if not line.startswith(" " * 5) else None
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def summary(record: Any) -> str:
    """The docstring's first paragraph, on one line."""
    return " ".join(inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0].split())


def kind_words(hint: Any) -> str:
    """A type in the words of somebody who writes TOML."""
    if get_origin(hint) is Literal:
        return " ".join(f"`{toml(value)}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {get_args(hint)[0].__name__}"
    if get_origin(hint) is dict:
        return "table"
    members = [member for member in get_args(hint) or (hint,) if member is not type(None)]
    return " or ".join(member.__name__ for member in members)


def toml(value: Any) -> str:
    """A value as TOML writes it; "" for None, which TOML does not know."""
    match value:
        case None:
            return ""
        case float():
            return repr(value)
        case tuple():
            return json.dumps(list(value))
        case _:
            return json.dumps(value)


def table(keys: Iterable[Key]) -> str:
    """One row a key."""
    rows = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for key in keys:
        default = f"`{key.default}`" if key.default else "not set"
        meaning = key.meaning.replace("|", "\\|")
        rows.append(f"| `{key.path}` | {key.kind} | {default} | {meaning} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
