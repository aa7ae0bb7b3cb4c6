"""`python -m deploy.grafana`: writes dashboards/, one file per board."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.json_model import dashboard_json

DASHBOARDS = Path(__file__).parent / "dashboards"


def main() -> None:
    """Write every board."""
    DASHBOARDS.mkdir(exist_ok=True)
    for board in BOARDS:
        (DASHBOARDS / f"{board.uid}.json").write_text(dashboard_json(board))


if __name__ == "__main__":
    main()
