"""How tests share a machine of two cores: one thread for torch in each process, and one whole run at a time."""

import os

import pytest
import torch

torch.set_num_threads(1)  # two on two shared cores wait for each other longer than they compute

WHOLE_RUNS = ("tests/e2e/", "tests/watching/", "tests/pod/", "tests/net/", "tests/test_docs.py")


@pytest.hookimpl(tryfirst=True)  # before groups become part of names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n`: tests of whole runs are one group and begin first; each other file is a group of its own."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    items.sort(key=lambda item: not item.nodeid.startswith(WHOLE_RUNS))  # stable: the order within stays
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("whole-runs" if file.startswith(WHOLE_RUNS) else file))
