"""Preflight against a real cluster of two nodes: every node answers, a shortfall is a table, a node that hangs is told.

Both nodes are processes of this machine; one of them is stopped as a hung machine is, with SIGSTOP.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from common.errors import EXIT_BAD_INPUT, EXIT_FINISHED
from tests.e2e.command import COMMAND, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT_S = 120.0
WITHIN_S = 4.0
HUNG = f"""
import ray
from deploy.ray_preflight import cluster_nodes
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
for node in cluster_nodes(within_s={WITHIN_S}):
    print(node.holds_driver, node.facts is not None, node.silence)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            made.add_node(num_cpus=1)
            yield made
        finally:
            made.shutdown()


def called(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "RAY_ADDRESS": cluster.address}
    return subprocess.run(
        arguments, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def preflight(cluster: Cluster, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = called(cluster, *COMMAND, "train", "CartPole-v1", "--preflight", "--json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["checks"]


def test_every_node_is_asked(cluster: Cluster) -> None:
    """3 CPUs on 2 nodes for 2 actors and a rank: all checks are met, of either node as many."""
    code, checks = preflight(cluster, "--actors", "2")
    assert (code, {check["outcome"] for check in checks}) == (EXIT_FINISHED, {"ok"})
    assert [check["found"] for check in checks if check["what"] == "CPUs"] == ["3 on 2 nodes"]
    processes = [check["found"] for check in checks if check["what"] == "process"]
    assert len(processes) == 2
    assert all(found.startswith("started on ") for found in processes)


def test_what_is_short_ends_the_command_before_anything_starts(cluster: Cluster) -> None:
    """64 actors and a GPU for a rank: two rows, and exit code 2."""
    wanted = ("--actors", "64", "--set", "learner.device=cuda")
    code, checks = preflight(cluster, *wanted)
    short = [(check["where"], check["what"]) for check in checks if check["outcome"] == "short"]
    assert (code, short) == (EXIT_BAD_INPUT, [("cluster", "CPUs"), ("cluster", "GPUs")])


def test_a_node_that_hangs_is_a_fact_after_the_deadline(cluster: Cluster) -> None:
    """Its raylet is stopped: the head still counts it among the living, and nobody waits for it for ever."""
    (worker,) = cluster.worker_nodes
    raylet = worker.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)
    try:
        done = called(cluster, sys.executable, "-c", HUNG)
    finally:
        os.kill(raylet, signal.SIGCONT)
    assert done.stdout.splitlines() == ["True True ", f"False False no answer within {WITHIN_S:g} s"], done.stderr
