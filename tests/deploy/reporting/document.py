"""A page as its reader gets it: parsed strictly, without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Document(HTMLParser):
    """Elements with their attributes, headings, words, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """All words, but for style and script."""
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value for _, attributes in self.elements if (value := attributes.get(name)) is not None]

    def of(self, tag: str, style: str = "") -> list[dict[str, str | None]]:
        """Attributes of the elements with a tag, and a class if one is given."""
        found = [attributes for name, attributes in self.elements if name == tag]
        return [each for each in found if not style or style in (each.get("class") or "").split()]

    def row(self, first: str) -> list[str]:
        """The row of a table that begins with these words, without them."""
        (found,) = [row[1:] for row in self.rows if row and row[0] == first]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self._open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        elif tag not in VOID and not self._open:
            raise AssertionError(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        inside = set(self._open)
        if inside & {"style", "script"}:
            return
        self.words.append(data)
        if inside & {"h1", "h2", "h3"}:
            level, words = self.headings[-1]
            self.headings[-1] = (level, words + data)
        if inside & {"th", "td"}:
            self.rows[-1][-1] += data
