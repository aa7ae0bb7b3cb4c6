"""What the numbers of an algorithm's configuration may be: one wording for all of them."""

from __future__ import annotations

import math
from typing import Any

from common.errors import ConfigError


def check_fractions(section: str, record: Any, *names: str) -> None:
    """0 to 1. Raises ConfigError naming the key."""
    for name in names:
        if not 0.0 <= getattr(record, name) <= 1.0:
            raise ConfigError(f"{section}.{name}", got=getattr(record, name), allowed="0 to 1")


def check_weights(section: str, record: Any, *names: str) -> None:
    """0 or more, finite. Raises ConfigError naming the key."""
    for name in names:
        if not 0.0 <= getattr(record, name) < math.inf:
            raise ConfigError(f"{section}.{name}", got=getattr(record, name), allowed="0 or more, finite")


def check_positive(section: str, record: Any, *names: str) -> None:
    """Above 0, finite. Raises ConfigError naming the key."""
    for name in names:
        if not 0.0 < getattr(record, name) < math.inf:
            raise ConfigError(f"{section}.{name}", got=getattr(record, name), allowed="above 0, finite")


def check_counts(section: str, record: Any, *names: str) -> None:
    """1 or more. Raises ConfigError naming the key."""
    for name in names:
        if getattr(record, name) < 1:
            raise ConfigError(f"{section}.{name}", got=getattr(record, name), allowed="1 or more")
