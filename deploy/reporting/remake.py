"""How to make a run again: from its ledger, bit for bit, or anew by its configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import TruestepError
from common.runs import RunRecord
from deploy.compare import differences
from deploy.config import merge, parse_config, recipe

OWN_FLAGS = ("algo", "engine")  # said by flags of their own; env.id is the command's first word


@dataclass(frozen=True, slots=True, kw_only=True)
class Remake:
    """Commands, as they are typed.

    Attributes:
        reproduce: makes the run again from its ledger and compares it.
        train: trains anew with the same configuration and seed; "" if this truestep does not take that configuration.
        changed: keys of the configuration that are not as in the recipe, with their values.
        why_not: why there is no `train`.
    """

    reproduce: str
    train: str
    changed: dict[str, Any]
    why_not: str = ""


def remake_of(record: RunRecord, out: Path) -> Remake:
    """The commands for a run of the output directory `out`."""
    again = f"truestep reproduce {_quoted(record.run)} --out {_quoted(str(out))}"
    try:
        changed = _changed(record)
    except TruestepError as error:
        return Remake(reproduce=again, train="", changed={}, why_not=str(error))
    if unsaid := [key for key, value in changed.items() if value is None]:
        why = f"no flag says that {', '.join(unsaid)} is not set, where the recipe sets it"
        return Remake(reproduce=again, train="", changed=changed, why_not=why)
    return Remake(reproduce=again, train=" ".join(_train(record, changed)), changed=changed)


def _changed(record: RunRecord) -> dict[str, Any]:
    """Values that are not those of the recipe and the records' defaults. Raises TruestepError."""
    asked = {"env": {"id": record.env}, "algo": record.algo}
    _, values = recipe(record.algo, record.env)
    usual = parse_config(merge(values, asked)).to_plain()
    recorded = parse_config(record.config).to_plain()
    return {each.key: each.b for each in differences(usual, recorded)}


def _train(record: RunRecord, changed: Mapping[str, Any]) -> Iterator[str]:
    yield f"truestep train {_quoted(record.env)}"
    flags = {"algo": record.algo, "engine": record.engine, "seed": record.seed}
    yield from (f"--{name} {_quoted(str(value))}" for name, value in flags.items())
    for key, value in changed.items():
        if key not in (*OWN_FLAGS, "seed"):
            yield f"--set {_quoted(f'{key}={toml(value)}')}"
    if origin := record.facts.get("init_from"):
        yield f"--init-from {_quoted(str(origin['run']))}"


def toml(value: Any) -> str:
    """A value as TOML writes it.

    >>> toml({"kind": "linear", "values": [1, 2.5, True]})
    '{"kind" = "linear", "values" = [1, 2.5, true]}'
    """
    match value:
        case Mapping():
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(toml(item) for item in value) + "]"
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case _:
            return json.dumps(value)


def _quoted(word: str) -> str:
    return shlex.quote(word)
