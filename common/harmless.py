"""Watching must never end what it watches."""

from __future__ import annotations

import logging
from typing import Any, TypeVar, cast

RecorderT = TypeVar("RecorderT")
logger = logging.getLogger(__name__)


def harmless(recorder: RecorderT, *, who: str) -> RecorderT:
    """`recorder`, but what its methods raise costs one log record each and not the run; they return None then.

    Args:
        recorder: whose methods return nothing that anybody waits for.
        who: records, in the log.
    """
    return cast(RecorderT, _Harmless(recorder, who))


class _Harmless:
    def __init__(self, recorder: object, who: str) -> None:
        self._recorder = recorder
        self._who = who
        self._told: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._recorder, name)

        def guarded(*arguments: Any, **named: Any) -> Any:
            try:
                return method(*arguments, **named)
            except Exception:
                if name not in self._told:
                    self._told.add(name)
                    logger.exception("metrics of %s: %s failed; the run goes on; told once", self._who, name)
                return None

        return guarded
