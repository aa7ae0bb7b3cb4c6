"""The checks of one run: those of this machine before anything is made, those of the cluster once it is joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.compose import Composition, num_frames
from deploy.preflight.check import Check, enforce
from deploy.preflight.cluster import Needs, check_cluster
from deploy.preflight.local import HERE, check_clock, check_directory, check_shared_memory
from deploy.preflight.node import look_around


def needs_of(composition: Composition) -> Needs:
    """Of every process that the run cannot do without, together; more actors may find their places later."""
    config = composition.config
    num_ranks, frame_bytes = config.learner.ranks, composition.layout.frame_layout().payload_bytes
    return Needs(
        cpus=config.actors.bounds[0] + num_ranks,
        gpus=num_ranks if config.learner.device == "cuda" else 0,
        store_bytes=num_frames(config, frame_bytes) * frame_bytes,
    )


def checks_here(composition: Composition, out: Path) -> list[Check]:
    """Of this machine; nothing is started, and nothing is left in `out`. Takes some milliseconds."""
    facts = look_around()
    checks = [check_directory(out), check_clock(HERE, facts.clock)]
    if composition.config.engine == "ray":
        from deploy.ray_launch import embeds, store_bytes

        if embeds():
            needed = needs_of(composition).store_bytes
            checks += [check_shared_memory(facts, needed_bytes=needed, store_bytes=store_bytes(needed))]
    return checks


def checks_of_cluster(composition: Composition) -> list[Check]:
    """Of the cluster that this process has joined: of every node in turn, all asked at once.

    Raises:
        DeadlineError: its head does not say which nodes there are.
    """
    from deploy.ray_preflight import cluster_nodes

    return check_cluster(cluster_nodes(), needs_of(composition), look_around())


def require_here(composition: Composition, out: Path, tell: Callable[[str], None]) -> None:
    """Refuse a run that this machine cannot carry. Raises PreflightError."""
    enforce(checks_here(composition, out), tell)


def require_cluster(composition: Composition, tell: Callable[[str], None]) -> None:
    """Refuse a run that the cluster cannot carry. Raises PreflightError and DeadlineError."""
    enforce(checks_of_cluster(composition), tell)
