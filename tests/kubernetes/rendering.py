"""What `kubectl kustomize` makes of an overlay, and ways to the pods in it."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "kind-small")
TREES = tuple(f"{overlay}{part}" for overlay in OVERLAYS for part in ("", "/cluster"))  # a run; a standing cluster
KUBECTL = os.environ.get("TRUESTEP_KUBECTL") or shutil.which("kubectl") or ""
needs_kubectl = pytest.mark.skipif(
    not KUBECTL, reason="no kubectl here: put one on the PATH, or name it in TRUESTEP_KUBECTL"
)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pod as it is written.

    Attributes:
        role: driver, learner, actor or submitter: its label `app.kubernetes.io/component`.
        labels: of the pod.
        spec: of the pod.
        ray: parameters of `ray start`; empty for the submitter.
    """

    role: str
    labels: dict[str, str]
    spec: Object
    ray: dict[str, str]

    @property
    def container(self) -> Object:
        """The first and only one."""
        (only,) = self.spec["containers"]
        assert isinstance(only, dict)
        return only

    def mounted_at(self, path: str) -> Object:
        """The volume that is mounted there. Raises LookupError."""
        names = [each["name"] for each in self.container["volumeMounts"] if each["mountPath"] == path]
        volumes = [each for each in self.spec["volumes"] if each["name"] in names]
        if len(volumes) != 1:
            raise LookupError(f"{self.role}: {len(volumes)} volumes at {path}")
        return dict(volumes[0])

    def environment(self) -> dict[str, str]:
        """Names and plain values."""
        return {each["name"]: each.get("value", "") for each in self.container.get("env", [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """All objects of an overlay."""

    objects: list[Object]

    def kind(self, *kinds: str) -> list[Object]:
        """Those of these kinds."""
        return [each for each in self.objects if each["kind"] in kinds]

    def one(self, kind: str, name: str = "") -> Object:
        """The only one of a kind, or of that name. Raises ValueError."""
        (found,) = [each for each in self.kind(kind) if name in ("", each["metadata"]["name"])]
        return found

    @property
    def job(self) -> Object | None:
        """The RayJob, if this is a run."""
        return next(iter(self.kind("RayJob")), None)

    @property
    def owner(self) -> Object:
        """The object that the pods are written in."""
        (found,) = self.kind("RayJob", "RayCluster")
        return found

    @property
    def cluster(self) -> Object:
        """Spec of the RayCluster, wherever it stands."""
        spec: Object = self.owner["spec"]
        return spec["rayClusterSpec"] if self.job else spec

    def templates(self) -> Iterator[Template]:
        """Every pod."""
        if self.job:
            yield template(self.job["spec"]["submitterPodTemplate"], {})
        for group in [self.cluster["headGroupSpec"], *self.cluster["workerGroupSpecs"]]:
            yield template(group["template"], group["rayStartParams"])

    def pods(self) -> list[Template]:
        """Those that Ray runs in."""
        return [each for each in self.templates() if each.role != "submitter"]

    def pod(self, role: str) -> Template:
        """That of one role. Raises ValueError."""
        (found,) = [each for each in self.templates() if each.role == role]
        return found

    def copy(self) -> Manifests:
        """To be changed."""
        return Manifests(objects=copy.deepcopy(self.objects))


def template(written: Object, ray: dict[str, str]) -> Template:
    """As a record; the parts are those of the object, so that a test can change them."""
    labels = written["metadata"]["labels"]
    role = labels.get("app.kubernetes.io/component", "nobody")
    return Template(role=role, labels=labels, spec=written["spec"], ray=ray)


def kustomize(directory: Path) -> str:
    """What kubectl renders. Raises AssertionError with what it says."""
    done = subprocess.run([KUBECTL, "kustomize", directory], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parse(text: str) -> Manifests:
    """Several documents of YAML."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Manifests(objects=[each for each in yaml.load_all(text, loader) if each])


@cache
def rendered(tree: str) -> Manifests:
    """One of TREES; not to be changed."""
    return parse(kustomize(KUBERNETES / "overlays" / tree))
