"""What Grafana shows. boards/ says which panels there are; json_model.py makes Grafana's JSON of them.

`python -m deploy.grafana` writes dashboards/. The libraries that it needs come with the extra `dashboards`.
"""
