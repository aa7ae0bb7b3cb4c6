"""Two runs side by side: what differs, and from which update on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RunNotFoundError
from common.runs import RunRegistry
from deploy.compare import (
    Difference,
    compare,
    compare_runs,
    comparison_lines,
    differences,
    fact_differences,
    first_difference,
)
from deploy.outputs import REGISTRY_FILE
from tests.common.test_runs import update

FACTS: dict[str, Any] = {
    "sources": {"learner": {"path": "/here", "sha256": "1"}},
    "git": {"commit": "c1", "dirty": False, "diff_sha256": None, "diff": "", "untracked": [], "reason": ""},
    "distributions": {
        "torch": {"version": "2.6", "record_sha256": "t"},
        "numpy": {"version": "2.0", "record_sha256": "n"},
    },
    "python": {"version": "3.11", "implementation": "CPython", "executable": "/python"},
    "system": {"host": "one", "kernel": "6.1", "libc": "glibc", "machine": "x86_64", "system": "Linux"},
    "cpu": {"vendor": "v", "model": "m", "flags": ["avx2"], "allowed": 2, "quota": None},
    "memory": {"total_bytes": 1, "limit": None},
    "torch": {"threads": 1, "version": "2.6"},
    "gpu": None,
    "environment": {},
}
CONFIG: dict[str, Any] = {"seed": 1, "policy_lag": 1, "learner": {"ranks": 1}, "env": {"id": "CartPole-v1"}}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / REGISTRY_FILE) as registry:
        yield registry


def make(registry: RunRegistry, run: str, numbers: range, *, config: dict[str, Any] = CONFIG, **changes: Any) -> None:
    """A run whose updates left the digests of their numbers, but for `changes` by update."""
    common: dict[str, Any] = {"env": "e", "algo": "ppo", "seed": 1, "engine": "ray", "out": "o", "facts": FACTS}
    registry.create_run(run=run, config=config, **common)
    registry.record_updates([update(number, run=run, **changes.get(f"u{number}", {})) for number in numbers])


# Values


def test_differences_are_told_by_path_in_the_order_of_the_first() -> None:
    """A value that is absent is None; lists are values."""
    a = {"seed": 1, "env": {"id": "x", "kwargs": {"n": 1}}, "sizes": [1], "gone": 3}
    b = {"env": {"kwargs": {"n": 2}, "id": "x"}, "sizes": [1, 2], "seed": 1, "new": {"a": 1}}
    assert list(differences(a, b)) == [
        Difference(key="env.kwargs.n", a=1, b=2),
        Difference(key="sizes", a=[1], b=[1, 2]),
        Difference(key="gone", a=3, b=None),
        Difference(key="new", a=None, b={"a": 1}),
    ]


PLAIN = st.recursive(
    st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("xyz"), PLAIN, max_size=3), st.dictionaries(st.sampled_from("xyz"), PLAIN))
@settings(deadline=None, max_examples=100)
def test_no_difference_means_equal_and_sides_can_be_turned(a: dict[str, Any], b: dict[str, Any]) -> None:
    """None of a mapping with itself; between two, as many one way as the other."""
    assert list(differences(a, a)) == []
    there, back = list(differences(a, b)), list(differences(b, a))
    assert (there == []) == (a == b)
    assert {(each.key, repr(each.a), repr(each.b)) for each in there} == {
        (each.key, repr(each.b), repr(each.a)) for each in back
    }


def facts(path: str, value: Any) -> dict[str, Any]:
    topic, _, rest = path.partition(".")
    inner = FACTS[topic]
    if not rest:
        return {**FACTS, topic: value}
    key, _, last = rest.partition(".")
    return {**FACTS, topic: {**inner, key: {**inner[key], last: value} if last else value}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("git.commit", "c2"),
        ("git.diff_sha256", "d"),
        ("distributions.torch.version", "2.7"),
        ("distributions.numpy.record_sha256", "other"),
        ("system.kernel", "6.2"),
        ("cpu.flags", ["avx2", "avx512f"]),
        ("torch.threads", 4),
        ("gpu", {"driver": "d"}),
        ("environment.OMP_NUM_THREADS", "4"),
        ("sources.learner.sha256", "2"),
    ],
)
def test_facts_that_may_explain_a_difference_are_told(path: str, value: Any) -> None:
    """Commit, changes, versions, files of a distribution, kernel, processor, threads, GPU, variables."""
    if path.startswith("environment"):
        other = {**FACTS, "environment": {"OMP_NUM_THREADS": value}}
    else:
        other = facts(path, value)
    assert [each.key for each in fact_differences(FACTS, other)] == [path]


@pytest.mark.parametrize(
    "path",
    [
        *("system.host", "memory.total_bytes", "python.executable"),
        *("sources.learner.path", "cpu.allowed", "git.diff"),
    ],
)
def test_facts_that_explain_nothing_are_not(path: str) -> None:
    """Where it ran, and how large that is; the text of changes, whose hash is told."""
    assert fact_differences(FACTS, facts(path, "another")) == ()


def test_of_another_version_the_hash_of_its_files_is_not_told() -> None:
    """It would say the same again."""
    other = facts("distributions.torch", {"version": "2.7", "record_sha256": "u"})
    assert [each.key for each in fact_differences(FACTS, other)] == ["distributions.torch.version"]


# Updates


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"parameter_digest": "x"}, True),
        ({"state_digest": "x"}, True),
        ({"state_digest": ""}, False),
        ({"version": 99, "term": 4, "lag": 2.0, "statistics": {}, "chain": "x", "num_ranks": 7}, False),
    ],
)
def test_updates_differ_by_their_digests(change: dict[str, Any], differs: bool) -> None:
    """What was not recorded is not compared; versions, terms and timing are in no digest."""
    a = [update(number) for number in (1, 2, 3)]
    b = [a[0], replace(a[1], **change), a[2]]
    through, first = first_difference(a, b)
    assert (through, first is not None) == ((1, True) if differs else (3, False))
    if first is not None:
        assert (first.update, first.a["update"], first.a["parameter_digest"]) == (2, 2, "digest-2")
        assert first.b["state_digest"] == b[1].state_digest


def test_a_shorter_history_is_the_same_as_far_as_it_goes() -> None:
    """Also one without any update."""
    a = [update(number) for number in (1, 2, 3)]
    assert first_difference(a, a[:2]) == (2, None)
    assert first_difference([], a) == (0, None)


def test_a_missing_update_is_a_difference() -> None:
    """Numbers are compared, not only positions."""
    a = [update(number) for number in (1, 2, 3)]
    through, first = first_difference(a, [a[0], a[2]])
    assert through == 1
    assert first is not None
    assert (first.update, first.a["update"], first.b["update"]) == (2, 2, 3)
    assert first_difference(a, [a[0], replace(a[1], update=3)])[0] == 1


# Runs


def test_a_comparison_names_configuration_facts_first_difference_and_results(registry: RunRegistry) -> None:
    """All of it plain, for JSON."""
    make(registry, "one", range(1, 5))
    make(registry, "two", range(1, 4), config={**CONFIG, "seed": 2}, u3={"parameter_digest": "x", "lag": math.nan})
    plain = compare(registry, "one", registry, "two").to_plain()
    assert plain["config"] == [{"key": "seed", "a": 1, "b": 2}]
    assert (plain["facts"], plain["identical_through"]) == ([], 2)
    assert plain["first_difference"]["update"] == 3
    assert (plain["first_difference"]["a"]["parameter_digest"], plain["first_difference"]["b"]["lag"]) == (
        "digest-3",
        None,
    )
    assert (plain["results"]["a"]["updates"], plain["results"]["b"]["updates"]) == (4, 3)
    json.dumps(plain, allow_nan=False)


def test_a_comparison_in_words(registry: RunRegistry) -> None:
    """Each fact on a line, both sides on it; digests of the first difference whole."""
    make(registry, "one", range(1, 3))
    make(registry, "two", range(1, 3), config={**CONFIG, "seed": 2}, u1={"parameter_digest": "ab" * 32})
    lines = comparison_lines(compare(registry, "one", registry, "two"))
    assert lines[:4] == [
        "runs         a one, b two",
        "config       seed: a 1, b 2",
        "facts        no difference",
        "updates      not one is identical",
    ]
    assert lines[4].strip() == "first difference: update 1"
    assert "parameter_digest=digest-1" in lines[5] and "parameter_digest=" + "ab" * 32 in lines[6]
    assert lines[7] == "results      status: a died, b died"
    assert "             evaluation: a –, b –" in lines
    alike = comparison_lines(compare(registry, "one", registry, "one"))
    assert alike[3] == "updates      identical through update 2"


def test_runs_of_two_output_directories_are_compared(registry: RunRegistry, tmp_path: Path) -> None:
    """A run of the same name there is another run; one that is not there is said."""
    make(registry, "one", range(1, 3))
    with RunRegistry.open(tmp_path / "other" / REGISTRY_FILE) as other:
        make(other, "one", range(1, 3), u2={"state_digest": "x"})
    found = compare_runs("one", "one", out=tmp_path, out_b=tmp_path / "other")
    assert found.identical_through == 1
    with pytest.raises(RunNotFoundError, match="'two'"):
        compare_runs("one", "two", out=tmp_path)
