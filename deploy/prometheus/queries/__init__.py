"""Every PromQL expression of truestep, once. Dashboards draw them, alerts put a limit on them, tests ask them.

A query is a `Query` in the file of the board that it belongs to, named by its attribute. `CATALOGUE` has all.
"""

from __future__ import annotations

from deploy.prometheus.queries import actors, integrity, learner, overview, stability
from deploy.prometheus.queries.query import Query, Unit, When

__all__ = ["CATALOGUE", "Query", "Unit", "When"]

CATALOGUE: dict[str, Query] = {
    f"{module.__name__.rpartition('.')[2]}.{name.lower()}": value
    for module in (overview, actors, learner, integrity, stability)
    for name, value in vars(module).items()
    if isinstance(value, Query)
}
