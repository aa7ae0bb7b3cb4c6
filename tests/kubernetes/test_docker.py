"""The image, as far as it can be judged without building it: no Docker engine takes part in these tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.rendering import ROOT, needs_kubectl, rendered

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("cpu", "cuda")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{Path('/usr/bin')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A `FROM`, and what follows.

    Attributes:
        base: an image, or a stage before.
        name: of the stage.
        lines: instruction and the rest, continued lines joined.
    """

    base: str
    name: str
    lines: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        """What follows each of them."""
        return [rest for word, rest in self.lines if word == instruction]


def stages(text: str) -> dict[str, Stage]:
    """Every stage by its name."""
    found: dict[str, Stage] = {}
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    for line in filter(None, map(str.strip, lines)):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(base=base, name=name, lines=())
        else:
            last = found[list(found)[-1]]
            found[last.name] = Stage(
                base=last.base, name=last.name, lines=(*last.lines, (word, " ".join(rest.split())))
            )
    return found


STAGES = stages(DOCKERFILE.read_text())


def lineage(name: str) -> Iterator[Stage]:
    """A stage, and those that it is made from."""
    while name in STAGES:
        yield STAGES[name]
        name = STAGES[name].base


def last(target: str, instruction: str) -> str:
    """What a target has of it in the end."""
    return next(rest[-1] for stage in lineage(target) if (rest := stage.all(instruction)))


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint here: pip install truestep[kubernetes]")
def test_the_linter_has_nothing_to_say() -> None:
    """hadolint, every rule."""
    done = subprocess.run([str(HADOLINT), DOCKERFILE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_bases_are_pinned() -> None:
    """To a patch release of the Python that CI has, the same for building and for running."""
    bases = {stage.base for stage in STAGES.values() if stage.base not in STAGES}
    (base,) = bases
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", base)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_as_a_user_and_hears_signals(target: str) -> None:
    """The same user as the pods; no shell before truestep, and SIGTERM is what ends it."""
    assert last(target, "USER") == "10001:10001"
    assert json.loads(last(target, "ENTRYPOINT")) == ["truestep"]
    assert json.loads(last(target, "CMD")) == ["--help"]
    assert last(target, "STOPSIGNAL") == "SIGTERM"
    assert last(target, "HEALTHCHECK").endswith('CMD ["python", "-m", "deploy.pod", "livez"]')
    assert last(target, "COPY") == f"--from=build-{target} /opt/truestep /opt/truestep"


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_installed_is_pinned(target: str) -> None:
    """By constraints.txt, all of it; extras that exist, CUDA's own only where there is CUDA."""
    installs = [each for stage in lineage(f"build-{target}") for each in stage.all("RUN") if "pip install" in each]
    assert len(installs) == 2 and all("--constraint constraints.txt" in each for each in installs)
    extras = next(set(found[1].split(",")) for each in installs if (found := re.search(r'"\.\[([\w,]+)\]"', each)))
    assert extras <= set(PROJECT["project"]["optional-dependencies"])
    assert ("gpu" in extras) == (target == "cuda")
    assert "torch==" in (ROOT / "constraints.txt").read_text()


def test_all_packages_enter_and_nothing_else() -> None:
    """What pyproject.toml packs is in the context and is copied; all else is left out, secrets and runs too."""
    packages = {each.rstrip("*") for each in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    for target in TARGETS:
        copied = {word for each in STAGES[f"build-{target}"].all("COPY") for word in each.split()[:-1]}
        assert copied == packages | {"pyproject.toml", "README.md", "LICENSE"}
    ignored = [each for each in (ROOT / ".dockerignore").read_text().splitlines() if each and not each.startswith("#")]
    assert ignored[0] == "*"
    allowed = {each[1:] for each in ignored if each.startswith("!")}
    assert allowed == packages | {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert all((ROOT / each).exists() for each in allowed)


def test_no_secret_is_in_the_image() -> None:
    """Neither as an argument nor in the environment."""
    named = [rest for stage in STAGES.values() for word, rest in stage.lines if word in ("ARG", "ENV")]
    assert not re.search(r"TOKEN|SECRET|PASSWORD|_KEY", " ".join(named))
    assert "NVIDIA_VISIBLE_DEVICES" not in " ".join(named)  # who starts the container says which


def test_compose_runs_it_as_kubernetes_does() -> None:
    """A read-only root, no capability, shared memory of its own, time to checkpoint, and a start that resumes."""
    service = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())["services"]["truestep"]
    assert service["build"]["target"] in TARGETS and service["profiles"] == ["run"]
    assert (ROOT / "deploy" / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["init"] is True
    assert service["security_opt"] == ["no-new-privileges:true"] and "shm_size" in service
    assert service["stop_grace_period"] == "5m" and service["restart"].startswith("on-failure:")
    words = service["command"]
    assert words[words.index("--resume") + 1] == "auto" and words[words.index("--out") + 1] == "/runs"
    assert f"metrics.port={service['environment']['TRUESTEP_DRIVER_PORT']}" in words


@needs_kubectl
@pytest.mark.parametrize(("overlay", "target"), [("cpu", "cpu"), ("gpu", "cuda"), ("kind-small", "cpu")])
def test_pods_run_a_target_of_todays_version(overlay: str, target: str) -> None:
    """The tag is that of pyproject.toml, and the user that of the image."""
    for pod in rendered(overlay).templates():
        assert pod.container["image"] == f"truestep:{PROJECT['project']['version']}-{target}"
        assert f"{pod.spec['securityContext']['runAsUser']}:" in last(target, "USER")
