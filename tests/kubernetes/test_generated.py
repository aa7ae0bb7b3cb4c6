"""Rules, boards and configuration in the manifests are those of their sources; nothing is written twice."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.grafana.__main__ import DASHBOARDS
from deploy.grafana.boards import BOARDS
from deploy.kubernetes.__main__ import RULE, prometheus_rule
from deploy.prometheus.alerts import ALERTS
from tests.kubernetes.rendering import KUBERNETES, ROOT, kustomize, needs_kubectl, parse, rendered
from tests.watching.prometheus_server import needs_promtool


def test_the_rules_are_those_of_prometheus() -> None:
    """`python -m deploy.kubernetes` was run after the last change of an alert."""
    assert RULE.read_text() == prometheus_rule()
    alone = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    assert yaml.safe_load(RULE.read_text())["spec"] == alone


@needs_kubectl
@needs_promtool
def test_prometheus_takes_the_rendered_rules(tmp_path: Path) -> None:
    """`promtool check rules` on what prometheus-operator is given."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rendered("cpu").one("PrometheusRule")["spec"]))
    done = subprocess.run(
        ["promtool", "check", "rules", rules], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout, done.stderr


@needs_kubectl
def test_every_board_is_there_to_the_byte() -> None:
    """One ConfigMap each, with the label that Grafana's sidecar looks for, and small enough to be applied."""
    found = {}
    for each in rendered("cpu").kind("ConfigMap"):
        if each["metadata"]["labels"].get("grafana_dashboard") == "1":
            assert len(each["data"]) == 1
            found |= each["data"]
    assert found == {f"{board.uid}.json": (DASHBOARDS / f"{board.uid}.json").read_text() for board in BOARDS}
    assert max(len(text) for text in found.values()) < 256 * 1024  # the annotation in which kubectl remembers it


@needs_kubectl
def test_prometheus_asks_the_driver_as_it_does_elsewhere() -> None:
    """Intervals and relabelling of deploy/prometheus/prometheus.yml."""
    shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (elsewhere,) = [each for each in shipped["scrape_configs"] if each["job_name"] == "truestep"]
    here = rendered("cpu").one("ScrapeConfig")["spec"]
    assert here["scrapeInterval"] == shipped["global"]["scrape_interval"]
    assert here["scrapeTimeout"] == shipped["global"]["scrape_timeout"]
    assert here["metricRelabelings"] == elsewhere["metric_relabel_configs"]
    assert here["httpSDConfigs"][0]["refreshInterval"] == elsewhere["http_sd_configs"][0]["refresh_interval"]


@needs_kubectl
@pytest.mark.parametrize("overlay", ["cpu", "gpu", "kind-small"])
def test_a_run_has_the_pods_of_the_standing_cluster(overlay: str) -> None:
    """The component `job` copies them; and everything else is the same, but for the one in the place of the other."""
    run, standing = rendered(overlay), rendered(f"{overlay}/cluster")
    assert run.cluster == standing.cluster
    rest = [each for each in run.objects if each["kind"] != "RayJob"]
    assert rest == [each for each in standing.objects if each["kind"] != "RayCluster"]


@needs_kubectl
def test_a_namespace_of_ones_own_is_written_once(tmp_path: Path) -> None:
    """In components/namespace: every object moves, and so does the address that Prometheus asks."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    kustomization = tmp_path / "deploy" / "kubernetes" / "components" / "namespace" / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("namespace: truestep", "namespace: ours"))
    manifests = parse(kustomize(tmp_path / "deploy" / "kubernetes" / "overlays" / "cpu"))
    assert {each["metadata"].get("namespace") for each in manifests.objects} == {"ours", None}
    assert manifests.one("Namespace")["metadata"]["name"] == "ours"
    assert (
        manifests.one("ScrapeConfig")["spec"]["httpSDConfigs"][0]["url"]
        == "http://truestep-driver.ours.svc:9100/targets"
    )


@needs_kubectl
def test_a_token_for_metrics_reaches_everybody_who_needs_it(tmp_path: Path) -> None:
    """The component `metrics-token`: the driver has it as a file, Prometheus the same Secret, which is not shipped."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    own = tmp_path / "deploy" / "kubernetes" / "overlays" / "own"
    own.mkdir()
    components = [f"../../components/{name}" for name in ("metrics-token", "job", "namespace")]
    own.joinpath("kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["../cpu/cluster"], "components": components})
    )
    manifests = parse(kustomize(own))
    driver = manifests.pod("driver")
    file = Path(driver.environment()["TRUESTEP_METRICS_TOKEN_FILE"])
    assert driver.mounted_at(str(file.parent))["secret"]["secretName"] == "truestep-metrics"
    others = [pod.role for pod in manifests.templates() if any("secret" in each for each in pod.spec["volumes"])]
    assert others == ["driver"]
    scraped = manifests.one("ScrapeConfig")["spec"]
    wanted = {"type": "Bearer", "credentials": {"name": "truestep-metrics", "key": file.name}}
    assert scraped["authorization"] == wanted == scraped["httpSDConfigs"][0]["authorization"]
    assert manifests.kind("Secret") == []


def test_every_file_is_used() -> None:
    """None of the manifests lies about without a kustomization that names it."""
    named = "".join(path.read_text() for path in KUBERNETES.rglob("kustomization.yaml"))
    files = [path for path in KUBERNETES.rglob("*") if path.suffix in (".yaml", ".toml")]
    assert len(files) > 20
    assert [path.name for path in files if path.name != "kustomization.yaml" and path.name not in named] == []
