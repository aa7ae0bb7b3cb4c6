"""A flame graph as one SVG file: opens in any browser, fetches nothing, follows light and dark mode.

Each box is a function; its width is its share of them all, what stands on it was called by it. Boxes can be clicked
to look closer, and say their whole name when pointed at. Without scripts the picture is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import PurePath

from deploy.profiling.folded import Folded, Node, tree_of

WIDTH = 1200.0
MARGIN = 12.0
ROW = 18.0
LETTER = 6.7  # width of a letter of 11 px monospace
NARROWEST = 0.4  # boxes below this width are left out; what called them shows their share

KINDS = {  # what a file belongs to: class of its boxes and words of the legend
    "truestep": ("actors", "common", "deploy", "learner"),
    "torch and numpy": ("torch", "numpy"),
    "ray": ("ray",),
}
STYLE = """
  :root { --page:#ffffff; --ink:#1d2430; --dim:#5b6472; --k0:#9ec5e8; --k1:#c8c2e6; --k2:#cfd4da;
    --k3:#f2b880; --k4:#e6e9ee; }
  @media (prefers-color-scheme: dark) {
    :root { --page:#14181f; --ink:#e8ebf0; --dim:#9aa4b2; --k0:#2f5f8a; --k1:#57508f; --k2:#414a57;
      --k3:#9a5a1c; --k4:#262c36; }
  }
  svg { background:var(--page); } text { font:11px ui-monospace,Menlo,Consolas,monospace; fill:var(--ink); }
  .dim { fill:var(--dim); } .head { font-size:15px; font-weight:600; } g.f { cursor:pointer; }
  g.f rect { stroke:var(--page); stroke-width:.6; } g.f:hover rect { stroke:var(--ink); }
  .k0 { fill:var(--k0); } .k1 { fill:var(--k1); } .k2 { fill:var(--k2); } .k3 { fill:var(--k3); }
  .k4 { fill:var(--k4); }
"""
SCRIPT = """
  const boxes = [...document.querySelectorAll('g.f')], margin = %(margin)s, width = %(width)s, letter = %(letter)s;
  function look(box) {
    const x0 = +box.dataset.x, w0 = +box.dataset.w, y0 = +box.dataset.y;
    for (const each of boxes) {
      const x = +each.dataset.x, w = +each.dataset.w, below = +each.dataset.y > y0;
      const from = below ? 0 : Math.max(0, (x - x0) / w0), to = below ? 1 : Math.min(1, (x + w - x0) / w0);
      const holds = x <= x0 + 1e-9 && x + w >= x0 + w0 - 1e-9;
      each.style.display = to - from > 1e-9 && (!below || holds) ? '' : 'none';
      const rect = each.querySelector('rect'), text = each.querySelector('text');
      const wide = (to - from) * width;
      rect.setAttribute('x', margin + from * width); rect.setAttribute('width', Math.max(0, wide));
      text.setAttribute('x', margin + from * width + 3);
      const room = Math.floor((wide - 6) / letter), name = each.dataset.n;
      text.textContent = room < 3 ? '' : name.length <= room ? name : name.slice(0, room - 1) + '…';
    }
  }
  for (const box of boxes) box.addEventListener('click', () => look(box));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of the graph.

    Attributes:
        label: of the function.
        count: of samples, or of microseconds.
        depth: boxes below it.
        left: where it begins, as a share of the whole width.
        share: its width, likewise.
    """

    label: str
    count: int
    depth: int
    left: float
    share: float


def boxes_of(folded: Folded) -> list[Box]:
    """Every box that is wide enough to be seen, those that call before those that are called."""
    root = tree_of(folded.counts)
    if not root.count:
        return []
    found: list[Box] = []
    waiting: list[tuple[Node, int, float]] = [(root, 0, 0.0)]
    while waiting:
        node, depth, left = waiting.pop()
        share = node.count / root.count
        if share * (WIDTH - 2 * MARGIN) < NARROWEST:
            continue
        found.append(Box(label=node.label, count=node.count, depth=depth, left=left, share=share))
        for child in sorted(node.below.values(), key=lambda each: each.label):
            waiting.append((child, depth + 1, left))
            left += child.count / root.count
    return found


def flame_svg(folded: Folded, *, title: str) -> str:
    """The graph of `folded` as an SVG document."""
    boxes = boxes_of(folded)
    head = _head(folded)
    top = 30 + 16 * len(head)
    height = top + ROW * (1 + max((box.depth for box in boxes), default=0)) + 34
    base = height - 28 - ROW
    script = SCRIPT % {"margin": MARGIN, "width": WIDTH - 2 * MARGIN, "letter": LETTER}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="100%" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text class="head" x="{MARGIN}" y="24">{escape(title)}</text>',
        *(f'<text class="dim" x="{MARGIN}" y="{42 + 16 * row}">{escape(line)}</text>' for row, line in enumerate(head)),
        *(_drawn(box, base, folded.words(box.count)) for box in boxes),
        *_legend(height - 12),
        f"<script><![CDATA[{script}]]></script>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _head(folded: Folded) -> list[str]:
    if not folded.total:
        return ["nothing was seen: every thread was waiting; --idle counts those that wait", *folded.remarks]
    hottest = ", ".join(f"{name} {share:.0%}" for name, share in folded.hottest(3))
    lines = [f"{folded.words(folded.total)}, most of it in {hottest}", *folded.remarks]
    return [_fitted(line, WIDTH - 2 * MARGIN) for line in lines]


def _drawn(box: Box, base: float, amount: str) -> str:
    inner = WIDTH - 2 * MARGIN
    x, y, width = MARGIN + box.left * inner, base - ROW * box.depth, box.share * inner
    shown = _fitted(box.label, width - 6)
    label = escape(box.label, quote=True)
    return (
        f'<g class="f" data-x="{box.left:.7f}" data-w="{box.share:.7f}" data-y="{y:g}" data-n="{label}">'
        f"<title>{label}: {amount}, {box.share:.1%}</title>"
        f'<rect class="k{_kind(box.label)}" x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{ROW - 1:g}" rx="1"/>'
        f'<text x="{x + 3:.2f}" y="{y + 12.5:g}">{escape(shown)}</text></g>'
    )


def _fitted(text: str, width: float) -> str:
    """As much of a text as there is room for; nothing where that would be less than three letters."""
    room = int(width / LETTER)
    return "" if room < 3 else text if len(text) <= room else f"{text[: room - 1]}…"


def _kind(label: str) -> int:
    """Which of KINDS the file of a label is of; one more is everything else, two more no function: a thread."""
    if not label.endswith(")"):
        return len(KINDS) + 1
    file = label.rpartition("(")[2].rstrip(")")
    package = PurePath(file).parts[:1]
    for number, names in enumerate(KINDS.values()):
        if package and package[0] in names:
            return number
    return len(KINDS)


def _legend(y: float) -> list[str]:
    words = [*KINDS, "everything else: the environment, Python"]
    lines, x = [], MARGIN
    for number, text in enumerate(words):
        lines.append(f'<rect class="k{number}" x="{x:g}" y="{y - 10:g}" width="12" height="12" rx="2"/>')
        lines.append(f'<text class="dim" x="{x + 17:g}" y="{y:g}">{escape(text)}</text>')
        x += 17 + LETTER * len(text) + 24
    return lines
