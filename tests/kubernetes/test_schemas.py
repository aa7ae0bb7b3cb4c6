"""Every object against the schema of its kind, strictly: a field that does not exist is an error.

Kubernetes' own kinds by `kubernetes-validate`, which carries the schemas; KubeRay's and prometheus-operator's by their
CRDs, where TRUESTEP_SCHEMAS names a directory with them.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.kubernetes.mock_api import KINDS
from tests.kubernetes.rendering import OVERLAYS, TREES, Object, needs_kubectl, rendered

KUBERNETES_VERSIONS = ("1.30", "1.34")
SCHEMAS = os.environ.get("TRUESTEP_SCHEMAS", "")
OURS = ("ray.io", "monitoring.coreos.com")  # groups whose kinds have CRDs
# What is used of prometheus-operator's ScrapeConfig, by hand: its CRD may not be among the schemas.
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
CREDENTIALS = {
    "type": "object",
    "required": ["name", "key"],
    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    "additionalProperties": False,
}
AUTHORIZATION = {
    "type": "object",
    "properties": {"type": {"type": "string"}, "credentials": CREDENTIALS},
    "additionalProperties": False,
}
SCRAPE_CONFIG = {
    "type": "object",
    "required": ["httpSDConfigs"],
    "properties": {
        "httpSDConfigs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["url"],
                "properties": {
                    "url": {"type": "string", "pattern": "^https?://.+$"},
                    "refreshInterval": DURATION,
                    "authorization": AUTHORIZATION,
                },
                "additionalProperties": False,
            },
        },
        "authorization": AUTHORIZATION,
        "scrapeInterval": DURATION,
        "scrapeTimeout": DURATION,
        "metricRelabelings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"regex": {"type": "string"}, "action": {"enum": ["labeldrop"]}},
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}

pytestmark = needs_kubectl
needs_validator = pytest.mark.skipif(
    find_spec("kubernetes_validate") is None, reason="no kubernetes-validate: pip install truestep[kubernetes]"
)
needs_schemas = pytest.mark.skipif(
    not (Path(SCHEMAS) / "kuberay").is_dir(), reason="TRUESTEP_SCHEMAS names no directory with CRDs in kuberay/"
)


def crd_kind(each: Object) -> bool:
    return each["apiVersion"].split("/")[0] in OURS


def strict(schema: Any) -> Any:
    """An OpenAPI schema of a CRD as JSON schema, in which every field that is not named is an error.

    Below allOf, anyOf and oneOf nothing is closed: they only narrow what the schema around them names.
    """
    if not isinstance(schema, dict):
        return schema
    done = {key: value for key, value in schema.items() if key not in ("format", "nullable")}
    if done.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if "properties" in done:
        # The server fills defaults in before it looks for what is required.
        required = [name for name in done.get("required", []) if "default" not in done["properties"].get(name, {})]
        done |= {"required": required, "properties": {name: strict(each) for name, each in done["properties"].items()}}
        if not done.get("x-kubernetes-preserve-unknown-fields"):
            done.setdefault("additionalProperties", False)
    for inner in ("items", "additionalProperties"):
        if isinstance(done.get(inner), dict):
            done[inner] = strict(done[inner])
    return done


@cache
def validators() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    """By apiVersion and kind, of the CRDs in the directory whose kinds are used."""
    found = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = {f"{kind.version.split('/')[0]}_{kind.plural}.yaml" for kind in KINDS}
    for path in sorted(path for path in Path(SCHEMAS).glob("*/*.yaml") if path.name in files):
        crd = yaml.load(path.read_text(), loader)["spec"]
        for version in crd["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            key = (f"{crd['group']}/{version['name']}", crd["names"]["kind"])
            found[key] = jsonschema.Draft202012Validator(schema)
    return found


def faults(each: Object) -> list[str]:
    """What the CRD of its kind has against it."""
    key = (each["apiVersion"], each["kind"])
    if key not in validators() and each["kind"] == "ScrapeConfig":
        errors = jsonschema.Draft202012Validator(SCRAPE_CONFIG).iter_errors(each["spec"])
    else:
        errors = validators()[key].iter_errors(each)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors]


@needs_validator
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("tree", OVERLAYS)
def test_kubernetes_takes_its_own_kinds(tree: str, version: str) -> None:
    """In an old and a new version of Kubernetes; a standing cluster has the same ones."""
    import kubernetes_validate

    own = [each for each in rendered(tree).objects if not crd_kind(each)]
    assert len(own) >= 10
    for each in own:
        kubernetes_validate.validate(each, version, strict=True)


@needs_validator
def test_kubernetes_does_not_take_a_field_that_it_does_not_have() -> None:
    """So the validator is strict."""
    import kubernetes_validate

    service = rendered("cpu").copy().one("Service")
    service["spec"]["publishNotReady"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, KUBERNETES_VERSIONS[0], strict=True)


@needs_schemas
@pytest.mark.parametrize("tree", TREES)
def test_operators_take_theirs(tree: str) -> None:
    """RayJob, RayCluster, PodMonitor, PrometheusRule and ScrapeConfig, pods inside included."""
    theirs = [each for each in rendered(tree).objects if crd_kind(each)]
    assert len(theirs) == (1 if tree.startswith("kind-small") else 4)
    assert [(each["kind"], faults(each)) for each in theirs if faults(each)] == []


@needs_schemas
@pytest.mark.parametrize("kind", ["RayJob", "PodMonitor", "PrometheusRule", "ScrapeConfig"])
def test_operators_do_not_take_a_field_that_they_do_not_have(kind: str) -> None:
    """At the top, and deep in a pod."""
    manifests = rendered("cpu").copy()
    manifests.one(kind)["spec"]["nonsense"] = 1
    assert any("nonsense" in line for line in faults(manifests.one(kind)))
    if kind == "RayJob":
        manifests.pod("actor").container["memory"] = "1Gi"
        assert any("memory" in line for line in faults(manifests.one(kind)))
