"""Scrapes made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from common.clock import NS_PER_S
from common.metrics_reading import Reading, read_metrics
from deploy.top.scraping import Scrape, Seen, Window
from deploy.watched import LiveProcess

Series = Mapping[str, float]  # by name, with its labels as Prometheus writes them


def reading(series: Series) -> Reading:
    """The series as a process would serve them."""
    return read_metrics("".join(f"{name} {value}\n" for name, value in series.items()))


def process(name: str, *, lease: str = "a") -> LiveProcess:
    """`actor-3` or `learner-0`, as a driver lists it."""
    role, _, index = name.partition("-")
    return LiveProcess(role=role, index=int(index), instance=f"{name}-{lease}", address="127.0.0.1:1", host="h", pid=1)


def scrape(
    at_s: float,
    driver: Series,
    others: Mapping[str, Series] | None = None,
    *,
    lease: str = "a",
    silent: Mapping[str, str] | None = None,
) -> Scrape:
    """A moment: the driver's series, those of others by name, and who did not answer, by name and why."""
    at_ns = round(at_s * NS_PER_S)
    others, silent = others or {}, silent or {}
    listed = [process(name, lease=lease) for name in (*others, *silent)]
    return Scrape(
        at_ns=at_ns,
        driver=Seen(at_ns=at_ns, reading=reading(driver)),
        driver_instance=f"driver-0-{lease}",
        listed=tuple(listed),
        seen={f"{name}-{lease}": Seen(at_ns=at_ns, reading=reading(series)) for name, series in others.items()},
        silent={f"{name}-{lease}": why for name, why in silent.items()},
    )


def window(*scrapes: Scrape, seconds: float = 10.0) -> Window:
    """All of them, one after the other."""
    made = Window(seconds)
    for each in scrapes:
        made.add(each)
    return made
