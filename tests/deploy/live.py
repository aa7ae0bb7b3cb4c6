"""A driver and its processes as their servers are, in this process: what `top` and `profile` talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from common.clock import MonotonicClock
from common.metrics import PortRange, Registry, Target, new_registry, serve
from common.process_identity import ProcessIdentity
from common.profile_pages import ProfilePages, Tracer

ANY = PortRange(first=0, last=0)


@dataclass
class LiveRun:
    """Servers of one driver, one actor and one learner rank.

    Attributes:
        address: of the driver.
        registries: by name of the process.
        targets: as the driver lists them; tests change them.
        close_driver: ends its server, as its end does.
    """

    address: str = ""
    registries: dict[str, Registry] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    close_driver: Callable[[], None] = field(default=lambda: None)


@contextmanager
def live_run(tracer: Tracer | None = None) -> Iterator[LiveRun]:
    """`driver`, `actor-0` and `learner-0`, all of which answer."""
    run = LiveRun()
    with ExitStack() as stack:
        for role, index in (("driver", 0), ("actor", 0), ("learner", 0)):
            registry = new_registry()
            pages = ProfilePages(f"{role} {index}", MonotonicClock(), tracer=tracer if role == "learner" else None)
            listed = (lambda: run.targets) if role == "driver" else None
            server = stack.enter_context(serve(registry, ports=ANY, targets=listed, pages=pages, who=f"{role} {index}"))
            target = target_of(role, index, f"127.0.0.1:{server.port}")
            run.targets.append(target)
            if role == "driver":
                run.close_driver = server.close
            run.registries["driver" if role == "driver" else f"{role}-{index}"] = registry
        run.address = run.targets[0].address
        yield run


def target_of(role: str, index: int, address: str, *, lease: str = "abc") -> Target:
    """A process of this machine, as a driver lists it; its process id is this one's."""
    own = ProcessIdentity.current()
    return Target(role=role, index=index, lease=lease, address=address, run="r", host=own.host, pid=own.pid)  # type: ignore[arg-type]
