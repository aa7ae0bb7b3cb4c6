"""What a browser makes of a page: nothing is fetched, nothing overflows, nothing is complained of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from itertools import product
from pathlib import Path

import pytest

from deploy.reporting.page import write_report
from tests.deploy.reporting.browser import CHROMIUM, DESKTOP, PHONE, SCHEMES, Browser
from tests.deploy.reporting.runs import Made, evaluation, update

COLOURS = re.compile(r"--(\w+): (#[0-9a-f]{6})\b")
WORDS = ("ink", "soft", "a", "b", "good", "bad", "warn")  # colours that letters have
GROUNDS = ("ground", "raised")
READABLE = 4.5  # ratio of contrast that WCAG 2.2 asks for text (1.4.3, level AA)
SEEN = 3.0  # for what is drawn (1.4.11)

WIDER_THAN_PAGE = """
[...document.body.querySelectorAll("*")].filter(each => {
  if (each.closest("svg, .scroll, .unseen")) return false;
  const box = each.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1;
}).map(each => each.outerHTML.slice(0, 120))
"""
CUT_LETTERS = """
[...document.querySelectorAll("svg.chart text")].filter(text => {
  const box = text.getBoundingClientRect();
  return box.width > 0 && (box.left < 0 || box.right > document.documentElement.clientWidth);
}).map(text => text.textContent)
"""
SHOWN = (
    "[...new Set([...document.querySelectorAll('.wide, .narrow')].filter(e => e.offsetHeight).map(e => e.className))]"
)
POINT = """
(() => {
  const strip = [...document.querySelectorAll(".columns rect")].find(each => each.getBoundingClientRect().width > 0);
  strip.scrollIntoView({block: "center", behavior: "instant"});
  const box = strip.getBoundingClientRect();
  const at = {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2};
  strip.dispatchEvent(new PointerEvent("pointermove", at));
  const tip = document.querySelector(".tip");
  return [tip.hidden, tip.textContent];
})()
"""


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the style sheet, by scheme."""
    text = resources.files("deploy.reporting").joinpath("templates/report.css").read_text()
    light, _, rest = text.partition("@media screen and (prefers-color-scheme: dark)")
    return {"light": dict(COLOURS.findall(light)), "dark": dict(COLOURS.findall(rest))}


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Ratio of contrast."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_as_defined() -> None:
    """Black on white is 21, a colour on itself 1; the standard's own examples."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_words_and_lines_stand_out_from_their_ground(scheme: str) -> None:
    """In both colour schemes; words on the layers of a stack too."""
    palette = palettes()[scheme]
    for word, ground in product(WORDS, GROUNDS):
        assert contrast(palette[word], palette[ground]) >= READABLE, (word, ground)
    for line in ("a", "b", "bad", "good"):
        assert contrast(palette[line], palette["ground"]) >= SEEN


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Of one run and of two, with long names and all that can happen."""
    made = Made.under(tmp_path_factory.mktemp("pages"))
    long = "a-run-with-a-name-that-goes-on-and-on-for-as-long-as-it-may-because-somebody-put-every-setting-into-it"[:99]
    for run in (long, "s"):
        rows = [update(number, run=run, value=float("nan") if number == 7 else 1.0) for number in range(1, 31)]
        made.run(run, updates=rows)
        for kind in ("ACTOR_LOST", "RANK_LOST", "GROUP_FORMED", "VERDICT"):
            made.event(run, 3.0, kind, verdict="slow_actor", why="words " * 40)
        made.registry.record_evaluation(evaluation(5, 10.0, 30.0, run=run))
        made.finish(run)
    yield [write_report(long, out=made.out).path, write_report(long, "s", out=made.out).path]
    made.registry.close()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_browser_finds_nothing_wrong(pages: list[Path], size: tuple[int, int], scheme: str) -> None:
    """One request, which is the page; no error; no scrolling sideways; the ground is that of the scheme."""
    with Browser(size=size, scheme=scheme) as browser:
        for page in pages:
            browser.open(page)
            asked = [each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")]
            assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
            assert not browser.heard("Runtime.exceptionThrown") and not browser.heard("Log.entryAdded")
            assert not browser.heard("Runtime.consoleAPICalled")
            assert browser.value("document.documentElement.scrollWidth") == size[0]
            assert browser.value(WIDER_THAN_PAGE) == []
            assert browser.value(CUT_LETTERS) == []
            shown = browser.value(
                "[...document.querySelectorAll('.wide, .narrow')].filter(x => x.offsetHeight)[0].className"
            )
            assert shown == ("narrow" if size == PHONE else "wide")
            hidden, told = browser.value(POINT)
            assert not hidden and told.startswith("up to ")
            red = int(palettes()[scheme]["ground"][1:3], 16)
            assert f"rgb({red}," in browser.value("getComputedStyle(document.body).backgroundColor")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
def test_a_page_is_whole_without_its_script_and_on_paper(pages: list[Path], tmp_path: Path) -> None:
    """The titles stay where a browser shows them itself; printing unfolds and keeps light colours."""
    with Browser(size=DESKTOP, scheme="dark") as browser:
        browser.call("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(pages[0])
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
        assert browser.value("document.querySelectorAll('.columns title').length") > 100
        browser.open(pages[0])
        browser.value("dispatchEvent(new Event('beforeprint'))")
        assert browser.value("[...document.querySelectorAll('details')].every(each => each.open)")
        browser.call("Emulation.setEmulatedMedia", media="print", features=[])
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
