"""Profiles that a process makes of itself, asked for over HTTP; see common.profile_pages for the other side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from common.errors import ConfigError, UnreachableError
from common.process_identity import Liveness, ProcessIdentity
from common.profile_pages import INDEX
from common.profiling import ThreadStack
from deploy.profiling.folded import Folded
from deploy.watched import ANSWER_S, LiveProcess, fetch

GRACE_S = 90.0  # beyond the seconds asked for: a trace begins with the rank's next update, and is long to write


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A live process that answers.

    Attributes:
        process: as its driver lists it.
        kinds: of profile that it can make.
        here: whether it runs on this machine, and its process id means it from here.
    """

    process: LiveProcess
    kinds: tuple[str, ...]
    here: bool

    def flame(self, *, seconds: float, rate: float, idle: bool) -> Folded:
        """Sampled by a thread of the process itself."""
        answer = json.loads(self._get("flame", seconds, {"rate": rate, "idle": int(idle)}))
        counts = {tuple(stack): int(count) for stack, count in answer["counts"]}
        taken, missed = answer["taken"], answer["missed"]
        cost = answer["cpu_seconds"] / max(answer["seconds"], 1e-9)
        remark = f"sampled from inside: {taken:,} looks, {missed:,} missed, {cost:.1%} of a core"
        return Folded(counts=counts, in_us=answer["unit"] == "us", remarks=(remark,))

    def stacks(self) -> list[ThreadStack]:
        """Of every thread, told by the process itself."""
        answer = json.loads(self._get("stacks", 0.0, {}))
        return [ThreadStack(thread=each["thread"], frames=tuple(each["frames"])) for each in answer["threads"]]

    def trace(self, *, seconds: float) -> bytes:
        """Updates of a learner rank as Chrome trace JSON."""
        return self._get("torch", seconds, {})

    def memory(self, *, seconds: float) -> dict[str, Any]:
        """`common.allocations.Allocations` in plain values, with `seconds`."""
        answer: dict[str, Any] = json.loads(self._get("memory", seconds, {}))
        return answer

    def _get(self, kind: str, seconds: float, options: dict[str, float]) -> bytes:
        if kind not in self.kinds:
            raise ConfigError(
                f"{self.process.name} makes no profile of kind {kind}",
                got=kind,
                allowed=", ".join(self.kinds),
                fix="traces of torch are made by learner ranks in processes of their own: engine ray, --process rank-0",
            )
        query = f"?{urlencode({'seconds': seconds, **options})}" if seconds else ""
        path = f"{INDEX}/{kind}{query}"
        limit_s, process = seconds + GRACE_S, self.process
        answer = fetch(process.address, path, timeout_s=limit_s, who=process.name, token=process.token)
        if answer.status != HTTPStatus.OK:
            raise UnreachableError(f"{self.process.name} was not profiled", got=_why(answer.body))
        return answer.body


def ask(process: LiveProcess) -> Asked:
    """Find out what a process can show. Raises UnreachableError where it does not answer."""
    answer = fetch(process.address, INDEX, timeout_s=ANSWER_S, who=process.name, token=process.token)
    try:
        told = json.loads(answer.body)
        identity = ProcessIdentity(**told["process"])
        kinds = tuple(str(kind) for kind in told["kinds"])
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(
            f"{process.name} at {process.address} shows no profiles",
            got=f"status {answer.status} for {INDEX}",
            fix="the run may be of an older truestep",
        ) from None
    here = identity.liveness(ProcessIdentity.current()) is Liveness.ALIVE
    return Asked(process=process, kinds=kinds, here=here)


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:200] or "no reason"
