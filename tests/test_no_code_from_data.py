"""No code comes out of data: nothing of ours unpickles, evaluates, or lets a shell read what it was given.

What Ray does between its own processes is Ray's (docs/security.md); here are the four packages, by their syntax trees.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_contracts import FILES, ROOT, dotted, imports, names, within

UNPICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "ray.cloudpickle", "pandas")
LOADS = ("torch.load", "torch.save", "torch.jit.load", "torch.hub", "numpy.lib.format", "yaml.load", "yaml.unsafe_load")
RUNS = ("os.system", "os.popen", "subprocess.getoutput", "code", "codeop", "ctypes.PyDLL", "runpy")
SAFE = {"allow_pickle": False, "shell": False, "weights_only": True}  # whatever else is given, be it computed
BUILTINS = {"eval", "exec", "compile"}  # of names; `re.compile` is an attribute, and no such thing


def breaches(source: str) -> list[str]:
    """What could make code out of data, a line each."""
    tree = ast.parse(source)
    found = [
        f"{line}: {name}"
        for line, name in (*names(tree), *((line, full) for line, full, _ in imports(tree)))
        if any(within(name, owned) for owned in (*UNPICKLES, *LOADS, *RUNS))
    ]
    return sorted({*found, *_calls(tree)})


def _calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            yield f"{node.lineno}: {node.func.id}()"
        for keyword in node.keywords:
            safe = SAFE.get(keyword.arg or "")
            if safe is not None and ast.unparse(keyword.value) != str(safe):
                yield f"{node.lineno}: {keyword.arg}={ast.unparse(keyword.value)} of {dotted(node.func)}"


@pytest.mark.parametrize("path", FILES)
def test_no_file_makes_code_out_of_data(path: str) -> None:
    """Neither from a disk nor from the network."""
    assert breaches((ROOT / path).read_text()) == []


def imports_what_it_is_told(source: str) -> bool:
    """Whether a module is imported whose name does not stand in the source."""
    return any(
        isinstance(node, ast.Call)
        and dotted(node.func).rpartition(".")[2] in ("import_module", "__import__")
        and not all(isinstance(argument, ast.Constant) for argument in node.args)
        for node in ast.walk(ast.parse(source))
    )


def test_modules_that_a_user_names_are_imported_in_two_places() -> None:
    """`env.id = module:Id` and `net.factory = module:function` are the user's own code, named by the user."""
    told = [path for path in FILES if imports_what_it_is_told((ROOT / path).read_text())]
    assert told == ["actors/env/construct.py", "common/nets.py"]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f():\n    import dill",
        "import torch\ntorch.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import yaml\nyaml.load(text)",
        "eval('1')",
        "exec(text)",
        "compile(text, 'x', 'exec')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=flag)",
        "import os\nos.system('ls')",
        "import torch\nload('x', weights_only=False)",
        "from ray import cloudpickle",
    ],
)
def test_a_planted_breach_is_found(source: str) -> None:
    """A checker that sees nothing cannot pass."""
    assert breaches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')",
        "import json\njson.loads('1')",
        "import yaml\nyaml.safe_load('1')",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'])",
        "self.exec = 1",
        "import codecs",
    ],
)
def test_what_only_looks_alike_is_left_alone(source: str) -> None:
    """Names are compared whole."""
    assert breaches(source) == []
