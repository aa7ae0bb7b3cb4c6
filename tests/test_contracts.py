"""The house rules as facts about the source: who may import whom, who owns what, and what no file may hold.

The checker reads the syntax tree of every file of the four packages. Each rule is also shown a planted violation and a
harmless neighbour, so that a checker which sees nothing cannot pass.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "actors", "learner", "deploy")
FILES = sorted(path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAY_IMPORT = {
    "common": {"common"},
    "actors": {"actors", "common"},
    "learner": {"learner", "common"},
    "deploy": set(PACKAGES),
}
OWNERS = {  # module or name: the only files that may use it
    "ray": ("deploy/ray_*.py",),
    "gymnasium": ("actors/env/*",),
    "ale_py": ("actors/env/*",),
    "envpool": ("actors/env/*",),
    "sqlite3": ("common/runs.py", "common/runs_*.py"),
    "torch.distributed": ("learner/parallel/*",),
    "msgpack": ("common/wire.py",),
    "time": ("common/clock.py",),
    "datetime": ("common/clock.py",),
    "prometheus_client": ("common/metrics.py", "common/metrics_reading.py"),  # exposed in one, read in the other
    "pynvml": ("common/gpu_watch.py",),
    "opentelemetry": ("common/spans_otlp.py",),
    "pydantic": ("deploy/*",),
    "tyro": ("deploy/*",),
    "rich": ("deploy/*",),
    "jinja2": ("deploy/reporting/page.py",),
    "grafana_foundation_sdk": ("deploy/grafana/*",),
    "yaml": ("deploy/prometheus/*",),
    "tensorboard": ("deploy/writers/tensorboard_writer.py",),
    "torch.utils.tensorboard": ("deploy/writers/tensorboard_writer.py",),
    "wandb": ("deploy/writers/wandb_writer.py",),
    "pickle": (),
    "torch.load": (),
    "torch.save": (),
    # the global generators: seeded and saved in one room, drawn from in none
    "random": ("common/rng.py",),
    "numpy.random": ("common/rng.py",),
    "torch.manual_seed": ("common/rng.py",),
    "torch.seed": ("common/rng.py",),
    "torch.cuda.manual_seed": ("common/rng.py",),
    "torch.cuda.manual_seed_all": ("common/rng.py",),
    "torch.default_generator": ("common/rng.py",),
    "torch.random": ("common/rng.py",),
    "torch.get_rng_state": ("common/rng.py",),
    "torch.set_rng_state": ("common/rng.py",),
    "torch.rand": (),
    "torch.randn": (),
    "torch.randint": (),
    "torch.randperm": (),
    "torch.normal": (),
    "torch.bernoulli": (),
    "torch.multinomial": (),
    "uuid.uuid4": (),
}
# Classes that draw nothing by themselves; `default_rng()` is not among them: without a seed it draws from the system.
GENERATOR_CLASSES = {"Generator", "BitGenerator", "SeedSequence", "RandomState", "PCG64", "MT19937", "Philox", "SFC64"}
HARMLESS = {f"numpy.random.{name}" for name in GENERATOR_CLASSES} | {"random.Random", "random", "numpy.random"}
KNOWS_TORCH = ("cores", "distributions", "input_stage", "nets", "parameters", "torsos", "towers")
UPPER_STOREY = {f"common/{name}.py" for name in KNOWS_TORCH}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError|NotImplemented)\b")
WORKPLACE = re.compile(r"(?<![\w.])/(home|root|tmp|work)\b|\.\./\w+")
LONGEST_FUNCTION = 70


# ── the checker ──────────────────────────────────────────────────────────────────────────────────────────────────


def violations(path: str, source: str) -> list[str]:
    """What breaks a rule in the file at `path`, each as one line that names the place."""
    tree = ast.parse(source)
    found = [
        *relative_imports(tree),
        *wrong_direction(path, tree),
        *foreign_property(path, tree),
        *long_functions(tree),
    ]
    for number, line in enumerate(source.splitlines(), start=1):
        found += [(number, f"unfinished: {match[0]}") for match in UNFINISHED.finditer(line)]
        found += [(number, f"a path of one machine: {match[0]}") for match in WORKPLACE.finditer(line)]
    return [f"{path}:{number}: {words}" for number, words in sorted(set(found))]


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, dotted name and local name of everything imported, inside functions and `if TYPE_CHECKING` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}", alias.asname or alias.name


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import and of every attribute reached through one (`np.random.seed`)."""
    bound = {}
    for line, full, local in imports(tree):
        bound[local] = full if local != full.split(".")[0] else local
        yield line, full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            if first in bound:
                yield node.lineno, f"{bound[first]}.{rest}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain that begins with a name, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def within(name: str, owned: str) -> bool:
    return name == owned or name.startswith(f"{owned}.")


def relative_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "relative import"


def wrong_direction(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    package = path.split("/")[0]
    for line, name, _ in imports(tree):
        if (first := name.split(".")[0]) in PACKAGES and first not in MAY_IMPORT[package]:
            yield line, f"{package} imports {first}"
        if package == "common" and path not in UPPER_STOREY and first == "torch":
            yield line, "the lower storey of common imports torch"
        if package == "common" and path not in UPPER_STOREY:
            upper = {file.removesuffix(".py").replace("/", ".") for file in UPPER_STOREY}
            if any(within(name, module) for module in upper):
                yield line, "the lower storey of common imports the upper one"


def foreign_property(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in names(tree):
        for owned, owners in OWNERS.items():
            if not within(name, owned) or any(fnmatch(path, owner) for owner in owners):
                continue
            if name in HARMLESS:
                continue  # the module on the way to a class of it; what is reached through it is seen by itself
            yield line, f"{name} belongs to {', '.join(owners) or 'nobody'}"


def long_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield node.lineno, f"{node.name} has {length} lines, allowed {LONGEST_FUNCTION}"


# ── the product ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_four_packages_are_looked_at() -> None:
    """A checker of no files finds nothing."""
    assert {path.split("/")[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize("path", FILES)
def test_every_file_keeps_the_house_rules(path: str) -> None:
    """Direction of imports, single owners, no stub, no path of one machine, no function above 70 lines."""
    assert violations(path, (ROOT / path).read_text()) == []


LEARNER_ONLY = """
import importlib, pathlib, sys
for name in {blocked}:
    sys.modules[name] = None
for path in sorted(p for package in {packages} for p in pathlib.Path(package).rglob("*.py")):
    if path.as_posix() not in {without}:
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
print("imported")
"""
NEVER_BELOW = ["ray", "gymnasium", "pydantic", "tyro", "rich", "ale_py", "envpool", "opentelemetry"]
WITH_EXTRAS = ["common/spans_otlp.py"]  # imported only by those who want what it does


@pytest.mark.parametrize(
    ("packages", "blocked", "without"),
    [
        (["common", "learner"], NEVER_BELOW, WITH_EXTRAS),
        (["common"], [*NEVER_BELOW, "torch"], [*WITH_EXTRAS, *sorted(UPPER_STOREY)]),
    ],
    ids=["a machine without ray and gymnasium", "a process without torch"],
)
def test_the_lower_floors_stand_alone(packages: list[str], blocked: list[str], without: list[str]) -> None:
    """`common` and `learner` import where those are not installed, and the lower storey of `common` without torch."""
    code = LEARNER_ONLY.format(packages=packages, blocked=blocked, without=without)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("imported", "")


# ── the checker checked ──────────────────────────────────────────────────────────────────────────────────────────

PLANTED = [
    ("common/specs.py", "import actors.policy", "common imports actors"),
    ("actors/worker.py", "from learner.rank import LearnerRank", "actors imports learner"),
    ("learner/rank.py", "from actors import policy", "learner imports actors"),
    ("learner/rank.py", "def f():\n    import deploy.cli", "learner imports deploy"),
    ("learner/rank.py", "from .state import LearnerState", "relative import"),
    ("common/rng.py", "import torch", "the lower storey of common imports torch"),
    ("common/wire.py", "from torch.nn import Linear", "the lower storey of common imports torch"),
    ("common/runs.py", "from common.nets import NetConfig", "the lower storey of common imports the upper one"),
    ("deploy/cli.py", "import ray", "ray belongs to deploy/ray_*.py"),
    ("actors/worker.py", "from ray.util import queue", "ray.util.queue belongs to"),
    ("actors/worker.py", "import gymnasium as gym", "gymnasium belongs to actors/env/*"),
    ("common/manifest.py", "import sqlite3", "sqlite3 belongs to"),
    ("learner/rank.py", "import torch.distributed as dist", "torch.distributed belongs to"),
    ("learner/rank.py", "from torch import distributed", "torch.distributed belongs to"),
    ("learner/rank.py", "import torch\ntorch.distributed.barrier()", "torch.distributed.barrier belongs to"),
    ("common/fragment.py", "import msgpack", "msgpack belongs to common/wire.py"),
    ("deploy/driver.py", "import time", "time belongs to common/clock.py"),
    ("deploy/driver.py", "from time import monotonic", "time.monotonic belongs to"),
    ("deploy/driver.py", "import datetime\ndatetime.datetime.now()", "datetime.datetime.now belongs to"),
    ("deploy/watch.py", "from prometheus_client import Counter", "prometheus_client.Counter belongs to"),
    ("learner/rank.py", "import pydantic", "pydantic belongs to deploy/*"),
    ("common/checkpoints.py", "import pickle", "pickle belongs to nobody"),
    ("learner/state.py", "import torch\ntorch.load('x')", "torch.load belongs to nobody"),
    ("actors/rollout.py", "import random\nrandom.seed(1)", "random.seed belongs to common/rng.py"),
    ("actors/rollout.py", "import random\nrandom.random()", "random.random belongs to"),
    ("actors/rollout.py", "from random import choice", "random.choice belongs to"),
    ("actors/rollout.py", "import numpy as np\nnp.random.seed(1)", "numpy.random.seed belongs to"),
    ("actors/rollout.py", "import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng belongs to"),
    ("actors/rollout.py", "from numpy import random as r\nr.normal()", "numpy.random.normal belongs to"),
    ("actors/rollout.py", "from numpy.random import normal", "numpy.random.normal belongs to"),
    ("learner/rank.py", "import torch\ntorch.manual_seed(0)", "torch.manual_seed belongs to common/rng.py"),
    ("learner/rank.py", "import torch\nx = torch.randn(3)", "torch.randn belongs to nobody"),
    ("common/clock.py", "# TODO later", "unfinished: TODO"),
    ("common/clock.py", "def f():\n    raise NotImplementedError", "unfinished: NotImplementedError"),
    ("deploy/config.py", "HERE = '/home/ada'", "a path of one machine: /home"),
    ("deploy/config.py", "HERE = '../notes/x'", "a path of one machine: ../notes"),
    ("deploy/cli.py", "def long():\n" + "    x = 1\n" * 70, "long has 71 lines, allowed 70"),
]


@pytest.mark.parametrize(("path", "source", "words"), PLANTED)
def test_a_planted_violation_is_found(path: str, source: str, words: str) -> None:
    """Exactly where it stands."""
    found = violations(path, source)
    assert any(words in line for line in found), found
    assert all(line.startswith(f"{path}:") for line in found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("deploy/cli.py", "import actors.policy, learner.rank, common.rng"),
        ("deploy/ray_engine.py", "import ray\nray.init()"),
        ("actors/env/make.py", "import gymnasium"),
        ("common/runs_database.py", "import sqlite3"),
        ("learner/parallel/group.py", "import torch.distributed as dist"),
        ("common/clock.py", "import time\ntime.monotonic_ns()"),
        ("common/rng.py", "import random\nimport numpy as np\nrandom.seed(1)\nnp.random.seed(1)"),
        ("actors/rollout.py", "import numpy as np\ng: np.random.Generator\nnp.random.PCG64(3)"),
        ("actors/env/plain_state.py", "import random\nisinstance(1, random.Random)"),
        ("actors/rollout.py", "from common.clock import Clock\nclock.time()\nsomething.random.seed(1)"),
        ("actors/worker.py", "# see actors/worker.py and /worker, and the network/working set"),
        ("deploy/cli.py", "def long():\n" + "    x = 1\n" * 69),
    ],
)
def test_what_is_allowed_is_left_alone(path: str, source: str) -> None:
    """The owner in its own room, and names that only look alike."""
    assert violations(path, source) == []
