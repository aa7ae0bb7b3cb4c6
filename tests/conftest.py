"""How tests share a machine of two cores: one thread for torch in each process, and one whole run at a time."""

import os
from typing import Any

import pytest
import torch

torch.set_num_threads(1)  # two on two shared cores wait for each other longer than they compute

WHOLE_RUNS = ("tests/e2e/", "tests/watching/", "tests/pod/", "tests/net/", "tests/test_docs.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `-n` whole runs begin first: they take longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not item.nodeid.startswith(WHOLE_RUNS))  # stable: the order within stays


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `-n` all whole runs go to one process; of the rest, each file does."""
    from xdist.scheduler import LoadScopeScheduling

    class OneWholeRunAtATime(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "whole runs" if nodeid.startswith(WHOLE_RUNS) else nodeid.partition("::")[0]

    return OneWholeRunAtATime(config, log)
