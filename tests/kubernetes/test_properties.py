"""The table of safety properties: each holds in every overlay, and each is seen to fail on manifests without it."""

from __future__ import annotations

import pytest

from tests.kubernetes.life_properties import LIFE_PROPERTIES
from tests.kubernetes.network_properties import NETWORK_PROPERTIES
from tests.kubernetes.pod_properties import POD_PROPERTIES
from tests.kubernetes.property import Property
from tests.kubernetes.rendering import TREES, needs_kubectl, rendered

PROPERTIES = (*POD_PROPERTIES, *LIFE_PROPERTIES, *NETWORK_PROPERTIES)
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
