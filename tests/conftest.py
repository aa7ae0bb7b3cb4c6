"""How tests share a machine of two cores: one thread for torch in each process, and one Ray at a time."""

import os
import re
from typing import Any

import pytest
import torch

torch.set_num_threads(1)  # two on two shared cores wait for each other longer than they compute

OVER_RAY = re.compile(
    r"tests/(e2e/test_(actor_faults|closing|cluster|determinism|drill|faults|kill_everything|metrics_live"
    r"|preflight_cluster|profile_live|ranks|signals|sockets)|net/\w+|pod/\w+|watching/test_live_ray)\.py"
    r"|tests/e2e/\w+\.py::\w*(over_ray|\[ray)"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `-n` runs over Ray begin first: they take longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: OVER_RAY.match(item.nodeid) is None)  # stable: the order within stays


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `-n` all runs over Ray go to one process; of the rest, each file does."""
    from xdist.scheduler import LoadScopeScheduling

    class OneRayAtATime(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "over Ray" if OVER_RAY.match(nodeid) else nodeid.partition("::")[0]

    return OneRayAtATime(config, log)
