"""The table of safety properties: each holds in every overlay, and each is seen to fail on manifests without it."""

from __future__ import annotations

import pytest

from tests.kubernetes.property import Property
from tests.kubernetes.quantities import amount
from tests.kubernetes.rendering import OVERLAYS, TREES, needs_kubectl, rendered
from tests.kubernetes.table import DOCUMENT, PROPERTIES, renewed

BREAKS = [(each, told) for each in PROPERTIES for told in each.broken_by]

pytestmark = needs_kubectl


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("each", PROPERTIES, ids=[each.name for each in PROPERTIES])
def test_a_property_holds(each: Property, tree: str) -> None:
    """As a run and as a standing cluster, of every size."""
    assert list(each.check(rendered(tree))) == [], each.says


@pytest.mark.parametrize(("each", "told"), BREAKS, ids=[f"{each.name}: {told}" for each, told in BREAKS])
def test_manifests_without_it_are_found(each: Property, told: str) -> None:
    """The check names what was changed, and says so in words."""
    manifests = rendered("cpu").copy()
    each.broken_by[told](manifests)
    found = list(each.check(manifests))
    assert any(told in line for line in found), found


def test_every_property_has_been_seen_to_fail() -> None:
    """And has a name of its own."""
    assert all(each.broken_by for each in PROPERTIES)
    assert len({each.name for each in PROPERTIES}) == len(PROPERTIES)


def test_the_document_lists_them() -> None:
    """`python -m tests.kubernetes.table` was run after the last change."""
    document = DOCUMENT.read_text()
    assert renewed(document) == document
    assert all(each.says in document for each in PROPERTIES)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_document_says_what_an_overlay_asks_for(overlay: str) -> None:
    """Requests of all pods, added up by hand there."""
    manifests = rendered(overlay)
    replicas = {"actor": manifests.cluster["workerGroupSpecs"][1]["replicas"]}
    asked = [(replicas.get(pod.role, 1), pod.container["resources"]["requests"]) for pod in manifests.templates()]
    cpus = float(sum(number * amount(each["cpu"]) for number, each in asked))
    memory = float(sum(number * amount(each["memory"]) for number, each in asked)) / 2**30
    volume = manifests.one("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    (row,) = [
        line
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `deploy/kubernetes/overlays/{overlay}`")
    ]
    assert f"{cpus:g} CPUs, {memory:g} GiB, a volume of {volume}" in row
