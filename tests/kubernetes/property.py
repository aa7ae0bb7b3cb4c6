"""A safety property of manifests: what is so, how it is checked, and what would break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.kubernetes.rendering import Manifests

Check = Callable[[Manifests], Iterator[str]]
Change = Callable[[Manifests], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One row of the table.

    Attributes:
        name: for the test's id.
        says: the property, as a sentence.
        check: every fault in manifests, one line each, with the name of what is at fault first.
        broken_by: changes after which the check must find a fault; the key says which, and is what the fault's line
            has to contain.
    """

    name: str
    says: str
    check: Check
    broken_by: Mapping[str, Change]
