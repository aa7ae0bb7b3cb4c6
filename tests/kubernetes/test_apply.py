"""`kubectl apply` and `delete` of every overlay, against a mock of the API server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.mock_api import KINDS, Store, merged, mock_api
from tests.kubernetes.rendering import KUBECTL, KUBERNETES, TREES, needs_kubectl, rendered

CONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: mock, cluster: {server: "ADDRESS"}}]
users: [{name: mock, user: {}}]
contexts: [{name: mock, context: {cluster: mock, user: mock}}]
current-context: mock
"""


def kubectl(directory: Path, address: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it with a home of its own, where it keeps what it discovered."""
    config = directory / "kubeconfig"
    config.write_text(CONFIG.replace("ADDRESS", address))
    surroundings = os.environ | {"HOME": str(directory), "KUBECONFIG": str(config), "NO_PROXY": "*"}
    return subprocess.run(
        [KUBECTL, *words], capture_output=True, text=True, check=False, timeout=60, env=surroundings, cwd=directory
    )


def apply(directory: Path, address: str, tree: str) -> subprocess.CompletedProcess[str]:
    """Without the server's own schemas, which the mock has not; tests/kubernetes/test_schemas.py has them."""
    return kubectl(directory, address, "apply", "--validate=false", "-k", KUBERNETES / "overlays" / tree)


def expected(tree: str) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in rendered(tree).objects}


@needs_kubectl
@pytest.mark.parametrize("tree", TREES)
def test_an_overlay_is_applied_and_deleted(tree: str, tmp_path: Path) -> None:
    """At once and in one go: everything is there, in an order that a server takes; then nothing is."""
    with mock_api() as (address, store):
        done = apply(tmp_path, address, tree)
        assert (done.returncode, done.stderr) == (0, "")
        assert store.names() == expected(tree)
        gone = kubectl(tmp_path, address, "delete", "--wait=false", "-k", KUBERNETES / "overlays" / tree)
        assert (gone.returncode, gone.stderr) == (0, "")
        assert store.objects == {}


@needs_kubectl
def test_applying_again_changes_nothing(tmp_path: Path) -> None:
    """Idempotent: the second time nothing is created."""
    with mock_api() as (address, store):
        apply(tmp_path, address, "cpu")
        before = {path: each["metadata"]["name"] for path, each in store.objects.items()}
        again = apply(tmp_path, address, "cpu")
        assert again.returncode == 0, again.stderr
        assert " created" not in again.stdout
        assert {path: each["metadata"]["name"] for path, each in store.objects.items()} == before


@needs_kubectl
def test_the_mock_refuses_what_is_not_there(tmp_path: Path) -> None:
    """A kind that nobody has installed, and a namespace that nobody has made; both end kubectl with an error."""
    (tmp_path / "kind.yaml").write_text("apiVersion: v2\nkind: Nothing\nmetadata: {name: x}\n")
    (tmp_path / "lost.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: nowhere}\n")
    with mock_api() as (address, store):
        unknown = kubectl(tmp_path, address, "apply", "--validate=false", "-f", "kind.yaml")
        assert unknown.returncode == 1 and "no matches for kind" in unknown.stderr
        lost = kubectl(tmp_path, address, "apply", "--validate=false", "-f", "lost.yaml")
        assert lost.returncode == 1 and 'namespaces "nowhere" not found' in lost.stderr
        assert store.objects == {}


def test_the_mock_knows_no_more_kinds_than_are_used() -> None:
    """So that a kind that comes in by accident is noticed."""
    if KUBECTL:
        used = {(each["apiVersion"], each["kind"]) for tree in TREES for each in rendered(tree).objects}
        assert {(kind.version, kind.name) for kind in KINDS} == used


def test_patches_are_merged_as_the_rfc_says() -> None:
    """RFC 7396: null removes, maps are merged, all else is replaced."""
    assert merged({"a": 1, "b": {"c": [1], "d": 2}}, {"a": None, "b": {"c": [2]}}) == {"b": {"c": [2], "d": 2}}
    assert Store().names() == set()
