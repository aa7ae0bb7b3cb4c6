"""`python -m deploy.kubernetes`: writes prometheus-rule.yaml from the alerts of deploy/prometheus."""

from __future__ import annotations

from pathlib import Path

from deploy.prometheus.rules import groups, yaml_text

RULE = Path(__file__).parent / "components" / "monitoring" / "prometheus-rule.yaml"
HEAD = "# Made from deploy/prometheus/alerts.py by `python -m deploy.kubernetes`: edit there.\n"


def prometheus_rule() -> str:
    """The alerts as the resource that prometheus-operator loads."""
    labels = {"app.kubernetes.io/part-of": "truestep", "release": "kube-prometheus-stack"}
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "truestep", "labels": labels},
        "spec": {"groups": groups()},
    }
    return HEAD + yaml_text(resource)


def main() -> None:
    """Write it."""
    RULE.write_text(prometheus_rule())


if __name__ == "__main__":
    main()
