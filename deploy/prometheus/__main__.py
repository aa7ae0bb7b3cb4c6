"""`python -m deploy.prometheus`: writes alerts.yaml, and the table of alerts into docs/watching.md."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.prometheus.rules import markdown_table, rule_file

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "watching.md"
PLACE = re.compile(r"(<!-- alerts: python -m deploy\.prometheus -->\n).*?(\n<!-- end of alerts -->)", re.DOTALL)


def main() -> None:
    """Write both."""
    (HERE / "alerts.yaml").write_text(rule_file())
    if DOCUMENT.exists():  # an installed package has no docs
        DOCUMENT.write_text(PLACE.sub(lambda place: place[1] + markdown_table() + place[2], DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
