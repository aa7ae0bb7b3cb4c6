"""`python -m deploy.prometheus`: writes alerts.yaml, and the table of alerts into docs/watching.md."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deploy.prometheus.rules import markdown_table, rule_file

HERE = Path(__file__).parent
RUNBOOKS = HERE.parent / "runbooks"
DOCUMENT = HERE.parents[1] / "docs" / "watching.md"
PLACE = re.compile(r"(<!-- alerts: python -m deploy\.prometheus -->\n).*?(\n<!-- end of alerts -->)", re.DOTALL)


def renewed(document: str) -> str:
    """The text of docs/watching.md with the table of today's alerts."""
    table = markdown_table(os.path.relpath(RUNBOOKS, DOCUMENT.parent))
    return PLACE.sub(lambda place: place[1] + table + place[2], document)


def main() -> None:
    """Write both."""
    (HERE / "alerts.yaml").write_text(rule_file())
    if DOCUMENT.exists():  # an installed package has no docs
        DOCUMENT.write_text(renewed(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
