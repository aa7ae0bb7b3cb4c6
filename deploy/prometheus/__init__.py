"""What Prometheus is asked and told: the queries, the alerts, the configuration.

queries/ (PromQL, once) ──┬─► alerts.py ──► alerts.yaml          `python -m deploy.prometheus`
                          └─► deploy/grafana ──► dashboards/     `python -m deploy.grafana`
"""
