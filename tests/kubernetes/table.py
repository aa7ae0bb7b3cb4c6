"""`python -m tests.kubernetes.table`: writes the table of safety properties into docs/kubernetes.md."""

from __future__ import annotations

import re

from tests.kubernetes.life_properties import LIFE_PROPERTIES
from tests.kubernetes.network_properties import NETWORK_PROPERTIES
from tests.kubernetes.pod_properties import POD_PROPERTIES
from tests.kubernetes.rendering import ROOT

PROPERTIES = (*POD_PROPERTIES, *LIFE_PROPERTIES, *NETWORK_PROPERTIES)
DOCUMENT = ROOT / "docs" / "kubernetes.md"
PLACE = re.compile(
    r"(<!-- properties: python -m tests\.kubernetes\.table -->\n).*(<!-- end of properties -->)", re.DOTALL
)


def renewed(document: str) -> str:
    """The text of docs/kubernetes.md with today's table."""
    rows = ["| property | that is |", "| --- | --- |", *(f"| {each.name} | {each.says} |" for each in PROPERTIES)]
    return PLACE.sub(lambda place: place[1] + "\n".join(rows) + "\n" + place[2], document)


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text()))
