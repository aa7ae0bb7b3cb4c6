"""The command `truestep top`: draws a run until it ends or somebody leaves; with --once, one screen."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.live import Live

from common.clock import Clock, MonotonicClock
from common.errors import EXIT_FINISHED, ConfigError
from deploy.cli import Top
from deploy.top.keys import keys
from deploy.top.record import RecordedRun
from deploy.top.scraping import Scraper
from deploy.top.watching import Ended, Watching
from deploy.watched import address_of_run, token_of_run

LONGEST_S = 60.0
WIDE = 140  # columns where the screen goes to a file or a pipe
FIRST_LOOK_S = 2.0  # between the two looks that rates take


def top(command: Top, console: Console | None = None) -> int:
    """Show the run; returns the exit code.

    Raises:
        UserError: there is no such run, or nobody drives it.
        UnreachableError: its driver does not answer from the very first.
    """
    if not 0 < command.interval <= LONGEST_S:
        raise ConfigError("--interval", got=command.interval, allowed=f"above 0, up to {LONGEST_S:g} seconds")
    console = console or Console(width=None if Console().is_terminal else WIDE)
    clock = MonotonicClock()
    address = address_of_run(command.run, command.out, command.address)
    scraper = Scraper(clock, token=token_of_run(command.run, command.out, command.token_file))
    try:
        scraper.scrape(address)  # raises where nobody is
        watching = Watching(command.run, address, RecordedRun(command.run, command.out), scraper, clock)
        if command.once:
            ended = _once(watching, console, clock)
        elif console.is_terminal:
            ended = _live(watching, console, clock, command.interval)
        else:
            ended = _printed(watching, console, clock, command.interval)
    except KeyboardInterrupt:  # one of the ways to leave
        ended = None
    finally:
        scraper.close()
    if ended is not None:
        console.print(ended.words, markup=False, highlight=False)
    return EXIT_FINISHED


def _once(watching: Watching, console: Console, clock: Clock) -> Ended | None:
    first = watching.look()
    clock.sleep(FIRST_LOOK_S)
    seen = first if isinstance(first, Ended) else watching.look()
    if isinstance(seen, Ended):
        return seen
    console.print(seen)
    return None


def _live(watching: Watching, console: Console, clock: Clock, interval_s: float) -> Ended | None:
    """Until the run has ended; None if somebody left before."""
    with Live(console=console, screen=True, auto_refresh=False) as live, keys(clock) as wait_key:
        for seen in watching.screens():
            if isinstance(seen, Ended):
                return seen
            live.update(replace(seen, interactive=True), refresh=True)
            if wait_key(interval_s) in ("q", "Q"):
                return None
    return None


def _printed(watching: Watching, console: Console, clock: Clock, interval_s: float) -> Ended | None:
    """For files and pipes: one screen below the other."""
    for seen in watching.screens():
        if isinstance(seen, Ended):
            return seen
        console.print(seen)
        console.print()
        clock.sleep(interval_s)
    return None
