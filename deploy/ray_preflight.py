"""Every node of a Ray cluster asked what it is, all at once, by a task on each; a node that is silent is a fact."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deploy.preflight.cluster import Node
from deploy.preflight.node import NodeFacts, look_around
from deploy.ray_resources import ask

ANSWER_S = 60.0  # a process of Ray starts within seconds; on a machine that is busy within tens of them


def cluster_nodes(*, within_s: float = ANSWER_S) -> list[Node]:
    """Every live node with its answer, the driver's first. Raises DeadlineError where the head itself is silent."""
    listed: list[dict[str, Any]] = [node for node in ask(_nodes) if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    references = {node["NodeID"]: _question(node["NodeID"]) for node in listed if node["NodeID"] != here}
    if references:
        ray.wait(list(references.values()), num_returns=len(references), timeout=within_s)
    answers = {node_id: _answer(reference, within_s) for node_id, reference in references.items()}
    answers[here] = look_around(), ""  # the driver's own node is looked at from here
    nodes = [_node(node, *answers[node["NodeID"]], holds_driver=node["NodeID"] == here) for node in listed]
    return sorted(nodes, key=lambda node: (not node.holds_driver, node.address))


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _question(node_id: str) -> Any:
    """A task that takes no CPU, so that a node that is full, or has none to give, answers too."""
    here_only = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote: Any = ray.remote(look_around)
    return remote.options(num_cpus=0, max_retries=0, scheduling_strategy=here_only).remote()


def _answer(reference: Any, within_s: float) -> tuple[NodeFacts | None, str]:
    try:
        facts: NodeFacts = ray.get(reference, timeout=0)
    except TimeoutError:
        ray.cancel(reference, force=True)
        return None, f"no answer within {within_s:g} s"
    except RayError as error:
        return None, _last_line(error)
    return facts, ""


def _last_line(error: RayError) -> str:
    """The cause; the lines before it are a traceback of Ray's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _node(listed: dict[str, Any], facts: NodeFacts | None, silence: str, *, holds_driver: bool) -> Node:
    resources = listed["Resources"]
    return Node(
        address=str(listed["NodeManagerAddress"]),
        cpus=float(resources.get("CPU", 0)),
        gpus=float(resources.get("GPU", 0)),
        store_bytes=int(resources.get("object_store_memory", 0)),
        holds_driver=holds_driver,
        facts=facts,
        silence=silence,
    )
