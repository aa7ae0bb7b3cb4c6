"""What a run says, its ledger and its last checkpoint hold of every transition, compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.runs import RunRegistry
from deploy.outputs import checkpoint_store
from deploy.report import run_report
from deploy.saved import read_saved


def check_accounts(out: Path, run: str) -> None:
    """The run has finished, and every transition has one fate: trained, dropped for a reason, or in the last cut."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        told = run_report(registry, run)
        ledger = registry.ledger(run).fragments
    checkpoint = checkpoint_store(out, run).newest_good(lambda name, error: pytest.fail(f"{name}: {error}"))
    assert checkpoint is not None
    in_hand = sum(held.summary.num_valid for held in read_saved(checkpoint).cut.frames)
    trained = sum(each.num_valid for each in ledger if each.fate == "trained")
    dropped: dict[str, int] = {}
    for each in ledger:
        if each.fate != "trained":
            dropped[each.fate] = dropped.get(each.fate, 0) + each.num_valid
    assert (told["status"], told["trained"], told["dropped"]) == ("finished", trained, dropped)
    assert told["produced"] == trained + sum(dropped.values()) + in_hand
    print(f"produced {told['produced']} = trained {trained} + dropped {sum(dropped.values())} + in flight {in_hand}")
