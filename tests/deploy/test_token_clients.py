"""`top` and `profile` of a run that wants a token: where they find it, and what they say without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.env.config import EnvConfig
from common.clock import MonotonicClock
from common.errors import ConfigError
from common.metrics import PortRange, Target, new_registry, serve
from common.metrics_token import MetricsToken
from common.profile_pages import ProfilePages
from common.runs import RunRegistry
from deploy.config import RunConfig
from deploy.config_sections import MetricsConfig
from deploy.outputs import REGISTRY_FILE
from deploy.profiling.asking import ask
from deploy.top.scraping import Scraper
from deploy.watched import processes, token_of_run
from tests.deploy.live import target_of

SECRET, OTHER, THIRD = (
    "a-secret-of-32-characters-or-so",
    "another-secret-of-about-as-many",
    "and-a-third-one-that-is-like-it",
)
ANY = PortRange.parse("0")


@contextmanager
def guarded_run(*, actor_secret: str = SECRET) -> Iterator[str]:
    """Address of a driver that lists itself and an actor; both want a token."""
    clock, listed = MonotonicClock(), list[Target]()
    with (
        serve(
            new_registry(),
            ports=ANY,
            targets=lambda: listed,
            pages=ProfilePages("driver", clock),
            token=MetricsToken(secret=SECRET),
            who="driver",
        ) as driver,
        serve(
            new_registry(),
            ports=ANY,
            pages=ProfilePages("actor", clock),
            token=MetricsToken(secret=actor_secret),
            who="actor 0",
        ) as actor,
    ):
        address = f"127.0.0.1:{driver.port}"
        listed += [target_of("driver", 0, address), target_of("actor", 0, f"127.0.0.1:{actor.port}")]
        yield address


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three files with a token each."""
    made = {name: tmp_path / name for name in ("flag", "environment", "record")}
    for file, secret in zip(made.values(), (SECRET, OTHER, THIRD), strict=True):
        file.write_text(f"{secret}\n")
    return made


def test_every_request_of_top_and_profile_bears_the_token() -> None:
    """Driver and actor are scraped and asked for profiles."""
    token = MetricsToken(secret=SECRET)
    with guarded_run() as address:
        scraper = Scraper(MonotonicClock(), token=token)
        scrape = scraper.scrape(address)
        scraper.close()
        assert list(scrape.silent) == []
        assert [process.name for process in scrape.listed] == ["actor-0"]
        stacks = {process.name: ask(process).stacks() for process in processes(address, token=token)}
        assert list(stacks) == ["driver", "actor-0"]
        assert all(stacks.values())


@pytest.mark.parametrize(("secret", "got"), [(None, "no token"), (OTHER, "another token")])
def test_without_the_token_one_is_told_where_to_give_it(secret: str | None, got: str) -> None:
    """An error of the user's, exit code 2; the token that was tried is not in it."""
    token = None if secret is None else MetricsToken(secret=secret)
    with (
        guarded_run() as address,
        pytest.raises(ConfigError, match=r"bear the token.*--token-file or TRUESTEP_") as caught,
    ):
        processes(address, token=token)
    assert caught.value.got == got
    assert OTHER not in str(caught.value)


def test_a_process_that_wants_another_token_is_one_silent_process() -> None:
    """As after a restart of the driver with a new token: what can be seen is shown."""
    with guarded_run(actor_secret=OTHER) as address:
        scraper = Scraper(MonotonicClock(), token=MetricsToken(secret=SECRET))
        scrape = scraper.scrape(address)
        scraper.close()
    assert list(scrape.silent.values()) == ["another token"]


def test_the_flag_goes_before_the_environment_and_that_before_the_record(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record holds the path of the file; a run of another machine has no record here, and no token is sent."""
    config = RunConfig(env=EnvConfig(id="E-v0"), metrics=MetricsConfig(token_file=str(files["record"])))
    with RunRegistry.open(tmp_path / REGISTRY_FILE, read_only=False) as registry:
        registry.create_run(
            run="r",
            env="E-v0",
            algo="ppo",
            seed=0,
            engine="inline",
            config=config.to_plain(),
            facts={},
            out=str(tmp_path),
        )
    monkeypatch.setenv("TRUESTEP_METRICS_TOKEN_FILE", str(files["environment"]))
    assert token_of_run("r", tmp_path, files["flag"]) == MetricsToken(secret=SECRET)
    assert token_of_run("r", tmp_path, None) == MetricsToken(secret=OTHER)
    monkeypatch.delenv("TRUESTEP_METRICS_TOKEN_FILE")
    assert token_of_run("r", tmp_path, None) == MetricsToken(secret=THIRD)
    assert token_of_run("elsewhere", tmp_path, None) is None
    assert token_of_run("r", tmp_path / "nowhere", None) is None
