"""Every node of a Ray cluster held against the driver and against what the run needs. Pure: answers in, checks out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.preflight.check import Check, Outcome, judged
from deploy.preflight.local import SHM_FIX, check_clock, sized
from deploy.preflight.node import NodeFacts

CLUSTER = "cluster"
SAME_TRUESTEP = "install the same truestep on every node, and keep modules of these names off the path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A live node of the cluster.

    Attributes:
        address: as Ray names it.
        cpus, gpus: resources that it has.
        store_bytes: of its object store.
        holds_driver: whether this process runs there: every fragment passes through its store.
        facts: what a process there found; None if none answered.
        silence: why not.
    """

    address: str
    cpus: float
    gpus: float
    store_bytes: int
    holds_driver: bool
    facts: NodeFacts | None
    silence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run asks of a cluster.

    Attributes:
        cpus: one of each of its processes.
        gpus: one of each learner rank, if it has to compute on a GPU; else 0.
        store_bytes: that fragments may take at once.
    """

    cpus: int
    gpus: int
    store_bytes: int


def check_cluster(nodes: Sequence[Node], needs: Needs, driver: NodeFacts) -> list[Check]:
    """All checks: of the cluster as a whole, then node by node."""
    checks = [*_resources(nodes, needs)]
    for node in nodes:
        checks += [_answer(node)]
        if node.facts is not None:
            checks += [*_versions(node.address, node.facts, driver), *_gpus(node, node.facts)]
            checks += [_store(node, node.facts, needs), check_clock(node.address, node.facts.clock)]
    return checks


def _resources(nodes: Sequence[Node], needs: Needs) -> list[Check]:
    cpus, gpus = int(sum(node.cpus for node in nodes)), int(sum(node.gpus for node in nodes))
    checks = [
        judged(
            CLUSTER,
            "CPUs",
            found=f"{cpus} on {len(nodes)} nodes",
            needed=f"{needs.cpus}, one for each actor and each learner rank",
            fits=cpus >= needs.cpus,
            fix="use fewer --actors or --learners, or add nodes",
        )
    ]
    if needs.gpus:
        checks += [
            judged(
                CLUSTER,
                "GPUs",
                found=gpus,
                needed=f"{needs.gpus}, one for each learner rank",
                fits=gpus >= needs.gpus,
                fix="use fewer --learners, or learner.device = auto, which falls back to the CPU",
            )
        ]
    return checks


def _answer(node: Node) -> Check:
    return judged(
        node.address,
        "process",
        found=f"started on {node.facts.host}" if node.facts is not None else node.silence,
        needed="starts, and finds truestep",
        fits=node.facts is not None,
        fix="see the logs of Ray on that node; truestep has to be installed there",
    )


def _versions(where: str, facts: NodeFacts, driver: NodeFacts) -> list[Check]:
    def same(what: str, found: str, needed: str, fix: str) -> Check:
        return judged(where, what, found=found, needed=f"{needed}, as the driver", fits=found == needed, fix=fix)

    differing = sorted(name for name, digest in driver.sources.items() if facts.sources.get(name) != digest)
    return [
        judged(
            where,
            "truestep",
            found=f"other sources of {', '.join(differing)}" if differing else "the driver's sources",
            needed="the driver's sources",
            fits=not differing,
            fix=SAME_TRUESTEP,
        ),
        same("Python", _minor(facts.python), _minor(driver.python), "use one image, or one Python, on all nodes"),
        same("Ray", facts.ray, driver.ray, "use one image, or one Ray, on all nodes"),
        same("torch", facts.torch, driver.torch, "use one image, or one torch, on all nodes"),
    ]


def _minor(version: str) -> str:
    """Without the last part, in which neither bytecode nor Ray's protocol differ."""
    return version.rpartition(".")[0]


def _gpus(node: Node, facts: NodeFacts) -> list[Check]:
    if not node.gpus:
        return []
    return [
        judged(
            node.address,
            "GPU driver",
            found=f"shows {facts.gpus} GPUs",
            needed=f"{node.gpus:g}, which Ray gives away there",
            fits=facts.gpus >= node.gpus,
            fix="start that node with the GPUs that it has (--num-gpus), or give its container the devices",
        )
    ]


def _store(node: Node, facts: NodeFacts, needs: Needs) -> Check:
    """The driver's node holds every fragment; a store that is larger than /dev/shm lies on a disk."""
    if node.holds_driver and node.store_bytes < needs.store_bytes:
        return judged(
            node.address,
            "object store",
            found=sized(node.store_bytes),
            needed=f"{sized(needs.store_bytes)} for fragments",
            fits=False,
            fix="start that node with a larger --object-store-memory, or use fewer actors, lanes or rows",
        )
    return judged(
        node.address,
        "object store",
        found=f"{sized(node.store_bytes)}, /dev/shm {sized(facts.shm_bytes)}",
        needed="in /dev/shm",
        fits=node.store_bytes <= facts.shm_bytes,
        fix=SHM_FIX,
        otherwise=Outcome.WARNING,
    )
