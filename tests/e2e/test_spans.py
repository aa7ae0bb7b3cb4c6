"""The spans of whole runs, at a collector: complete, connected across processes, and without a trace in the result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from common.ledger import TRAINED, Ledger, LedgerFragment
from common.runs import RunRegistry
from deploy.config import parse_config
from deploy.display import Silent
from deploy.driver import StopFlag
from deploy.session import resume, train
from tests.collector import MISBEHAVING, Got, collecting
from tests.e2e.command import digests
from tests.e2e.in_process import embedded_ray

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
DRIFT_NS = 50_000_000  # of the wall clock's offset, asked for by two processes at two times


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A run and its spans."""

    spans: list[Got]
    ledger: Ledger
    digests: dict[int, str]

    def named(self, name: str) -> list[Got]:
        return [span for span in self.spans if span.name == name]

    def trained(self) -> list[LedgerFragment]:
        return [fragment for fragment in self.ledger.fragments if fragment.fate == TRAINED]

    def by_ids(self) -> dict[tuple[str, str], Got]:
        return {span.ids: span for span in self.spans}


class Listening(Silent):
    """What is told while a run goes on."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, text: str) -> None:
        self.lines.append(text)


def plain(endpoint: str, **changes: Any) -> dict[str, Any]:
    return {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 11,
        "steps": 600,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "learner": {"ranks": 2},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2},
        "metrics": {"enabled": False, "spans": endpoint},
    } | changes


def traced(out: Path, **changes: Any) -> Traced:
    """A finished run and what a collector got of it."""
    with collecting() as collector:
        outcome = train(parse_config(plain(collector.endpoint, **changes)), out=out, run="r")
        assert outcome.status == "finished", outcome.verdict
        spans: list[Got] = list(collector.spans)
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return Traced(spans=spans, ledger=registry.ledger("r"), digests=digests(out, "r"))


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Two actors, two ranks, inline."""
    return traced(tmp_path_factory.mktemp("synchronous"))


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """The same by IMPALA."""
    return traced(tmp_path_factory.mktemp("asynchronous"), algo="impala", impala={})


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(4)


@pytest.fixture(params=["synchronous", "asynchronous", pytest.param("ray", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Traced:
    """Each of the runs in turn; the last with a process for each actor and rank."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return traced(tmp_path, engine="ray")
    made: Traced = request.getfixturevalue(request.param)
    return made


def check_fragments(run: Traced) -> None:
    """Every fragment that was trained on has a rollout, a transfer that follows from it, an update that links to it."""
    rollouts = {(a["truestep.actor"], a["truestep.incarnation"], a["truestep.sequence"]): span for span, a in told(run)}
    assert len(rollouts) == len(run.named("rollout"))
    transfers = {(span.trace, span.parent): span for span in run.named("transfer")}
    takers = {link: span for span in run.named("update") for link in span.links}
    assert len(transfers) == len(run.named("transfer")) == len(takers) == len(run.trained()) > 0
    for fragment in run.trained():
        rollout = rollouts[fragment.name]
        assert rollout.attributes["truestep.valid"] == fragment.num_valid
        update, transfer = takers[rollout.ids], transfers[rollout.ids]
        assert update.attributes["truestep.update"] == fragment.update - 1  # the ledger counts updates from 1
        assert transfer.links == (update.ids,)
        assert transfer.instance == update.instance
        assert not transfer.attributes["truestep.transfer.other_host"]


def told(run: Traced) -> list[tuple[Got, dict[str, Any]]]:
    return [(span, span.attributes) for span in run.named("rollout")]


def check_updates(run: Traced) -> None:
    """Every update has an update and a sync of each rank, and one publish of the rank that made the document."""
    ranks = {"learner-0", "learner-1"}
    of_update = Counter((span.attributes["truestep.update"], span.instance) for span in run.named("update"))
    expected = {(each.update - 1, rank) for each in run.ledger.updates for rank in ranks}
    assert of_update == Counter(expected)
    assert {span.failure for span in run.spans} == {""}
    found = {(span.trace, span.span): span for span in run.named("update")}
    for name, instances in (("sync", ranks), ("publish", {"learner-0"})):
        parts = run.named(name)
        assert {found[span.trace, span.parent].instance for span in parts} == instances
        assert all(found[span.trace, span.parent].instance == span.instance for span in parts)
        assert len({span.parent for span in parts}) == len(parts) == len(run.ledger.updates) * len(instances)


def check_times(run: Traced) -> None:
    """Parts lie within their update; a transfer begins where its rollout ends, and ends within the update it is for."""
    spans = run.by_ids()
    for span in run.spans:
        assert 0 < span.start_ns <= span.end_ns
        parent = spans.get((span.trace, span.parent))
        assert (parent is None) == (not span.parent)
        if span.name in ("sync", "publish"):
            assert parent is not None
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
        if span.name == "transfer":
            assert parent is not None
            assert abs(span.start_ns - parent.end_ns) < DRIFT_NS
            update = spans[span.links[0]]
            assert update.start_ns <= span.end_ns <= update.end_ns


def test_every_fragment_and_every_update_is_there_and_connected(run: Traced) -> None:
    """As the ledger has them, and from one process to the other, though no context has travelled."""
    check_fragments(run)
    check_updates(run)
    check_times(run)
    assert {span.instance for span in run.spans} == {"actor-0", "actor-1", "learner-0", "learner-1"}
    assert {span.resource["truestep.run"] for span in run.spans} == {"r"}
    assert all(span.instance.startswith("actor") == (span.name == "rollout") for span in run.spans)


def test_a_synchronous_update_is_one_trace(synchronous: Traced) -> None:
    """From its rollouts to its publication, over all actors and ranks; besides there is what was left over."""
    names: dict[str, Counter[str]] = {}
    for span in synchronous.spans:
        names.setdefault(span.trace, Counter())[span.name] += 1
    whole = Counter(rollout=2, transfer=2, update=2, sync=2, publish=1)
    assert [found for found in names.values() if found["update"]] == [whole] * len(synchronous.ledger.updates)


def test_an_asynchronous_fragment_is_a_trace_of_its_own(asynchronous: Traced) -> None:
    """Whose update nobody knows when it is made."""
    rollouts = {span.trace for span in asynchronous.named("rollout")}
    assert len(rollouts) == len(asynchronous.named("rollout"))
    assert rollouts.isdisjoint(span.trace for span in asynchronous.named("update"))


def test_spans_change_no_bit(synchronous: Traced, tmp_path: Path) -> None:
    """Digests after every update are those of the run that sends none."""
    assert train(parse_config(plain("")), out=tmp_path, run="r").status == "finished"
    assert digests(tmp_path, "r") == synchronous.digests


@pytest.mark.parametrize(
    "kind", ["hanging", "refusing", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("absent", "busy"))]
)
def test_a_bad_collector_costs_a_log_record_and_no_bit(
    kind: str, synchronous: Traced, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Away, refusing, busy or hanging: the run ends as it would have, while the collector still is what it is."""
    with MISBEHAVING[kind]() as collector:
        outcome = train(parse_config(plain(collector.endpoint)), out=tmp_path, run="r")
        assert (outcome.status, len(collector.spans)) == ("finished", 0)
    assert digests(tmp_path, "r") == synchronous.digests
    assert [record.name for record in caplog.records] == ["common.spans_otlp"]


@pytest.mark.slow
def test_processes_do_not_wait_for_a_collector_that_hangs(cluster: None, synchronous: Traced, tmp_path: Path) -> None:
    """Nor does the driver wait for them: the run ends well, with the bits of the one inline, and says so once."""
    display = Listening()
    with collecting(hangs=True) as collector:
        config = parse_config(plain(collector.endpoint, engine="ray"))
        assert train(config, out=tmp_path, run="r", display=display).status == "finished"
        assert collector.posts >= 4  # of two actors and two ranks
    (warning,) = [line for line in display.lines if line.startswith("WARNING")]
    assert f"spans do not reach {collector.endpoint}" in warning
    assert digests(tmp_path, "r") == synchronous.digests


def test_a_run_is_resumed_where_opentelemetry_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another run is refused there; this one goes on without spans, and says so."""
    with collecting() as collector:
        stop = StopFlag()
        stop.ask("the test")
        config = parse_config(plain(collector.endpoint))
        assert train(config, out=tmp_path, run="r", stop=stop).status == "interrupted"
    monkeypatch.setitem(sys.modules, "common.spans_otlp", None)
    with pytest.raises(UserError, match=r"metrics\.spans needs OpenTelemetry"):
        train(config, out=tmp_path, run="another")
    assert not (tmp_path / "another").exists()
    assert resume("r", out=tmp_path).status == "finished"
    assert [record.name for record in caplog.records] == ["common.spans"]


def test_a_resumed_run_goes_on_in_its_traces_with_spans_of_its_own(tmp_path: Path) -> None:
    """Updates that are made again have the trace of the first time, and no id comes twice."""
    with collecting() as collector:
        stop = StopFlag()
        stop.ask("the test")
        config = parse_config(plain(collector.endpoint))
        assert train(config, out=tmp_path, run="r", stop=stop).status == "interrupted"
        assert resume("r", out=tmp_path).status == "finished"
        ids = Counter(span.ids for span in collector.spans)
        instances = {span.resource["truestep.run"] for span in collector.spans}
    assert max(ids.values()) == 1
    assert instances == {"r"}
