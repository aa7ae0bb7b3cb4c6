"""The bearer token of metrics: who is let in, who is not, and that nobody gets to see it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import MonotonicClock
from common.errors import ConfigError
from common.metrics import MetricsServer, PortRange, new_registry, serve
from common.metrics_server import PROBES
from common.metrics_token import MetricsToken, read_token, token_file
from common.profile_pages import ProfilePages

SECRET = "correct-horse.battery_staple~0+/=="
TOKEN = MetricsToken(secret=SECRET)
ANY = PortRange.parse("0")


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    pages = ProfilePages("driver", MonotonicClock())
    with serve(new_registry(), ports=ANY, targets=list, pages=pages, token=TOKEN, who="driver") as running:
        yield running


def get(port: int, path: str, authorization: str | None = None) -> tuple[int, str, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
        response = connection.getresponse()
        return response.status, response.headers.get("WWW-Authenticate", ""), response.read()
    finally:
        connection.close()


# ---- the token -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_only_the_token_is_admitted(header: str) -> None:
    """Whatever text is no header of this token lets nobody in, and none of it raises."""
    assert not TOKEN.admits(header)
    assert not TOKEN.admits(f"Bearer {header}")
    assert not TOKEN.admits(f"{SECRET}{header}")


@pytest.mark.parametrize("header", [f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET} "])
def test_the_scheme_has_no_case(header: str) -> None:
    """RFC 9110: names of schemes are alike in any case; white space around the token is not part of it."""
    assert TOKEN.admits(header)


@pytest.mark.parametrize("header", [SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", "Bearer"])
def test_near_misses_are_refused(header: str) -> None:
    """Another scheme, one character more or less, or none."""
    assert not TOKEN.admits(header)


def test_no_text_of_it_shows_the_secret() -> None:
    """Neither `repr` nor `str`: what holds a token may be logged."""
    assert SECRET not in f"{TOKEN!r} {TOKEN} {[TOKEN]}"


# ---- its file --------------------------------------------------------------------------------------------------------


def test_the_configuration_goes_before_the_environment() -> None:
    """metrics.token_file, else TRUESTEP_METRICS_TOKEN_FILE, else no token."""
    environment = {"TRUESTEP_METRICS_TOKEN_FILE": "e"}
    assert token_file("c", environment) == Path("c")
    assert token_file("", environment) == Path("e")
    assert token_file("", {"TRUESTEP_METRICS_TOKEN_FILE": ""}) is None
    assert read_token(token_file("", {})) is None


def test_white_space_around_a_token_is_none_of_it(tmp_path: Path) -> None:
    """Editors and `echo` end files with a newline."""
    file = tmp_path / "token"
    file.write_text(f"\n {SECRET}\r\n")
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    "text", ["", "short-15-chars-", "two words of a pass phrase", "line-of-16-chars\nand another", "x" * 4097]
)
def test_what_is_no_token_is_refused_unseen(tmp_path: Path, text: str) -> None:
    """Empty, short, long, or not for a header: the error says how long it is, and nothing of it."""
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_token(file)
    assert caught.value.got == f"{len(text.strip())} characters"
    assert not text or text not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, a directory, or not ASCII: serving without the token that was asked for would be worse."""
    (tmp_path / "latin").write_bytes("pässwort-pässwort".encode("latin-1"))
    for file in (tmp_path / "missing", tmp_path, tmp_path / "latin"):
        with pytest.raises(ConfigError, match=r"token of metrics cannot be read; got .*metrics.token_file"):
            read_token(file)


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/targets", "/profile", "/profile/stacks", "/nothing", "/", "/livez/x"])
@pytest.mark.parametrize("header", [None, "", "Bearer wrong-wrong-wrong", f"Basic {SECRET}"])
def test_without_the_token_nothing_is_told(server: MetricsServer, path: str, header: str | None) -> None:
    """401 for every path, known or not: not even which there are."""
    status, asks, body = get(server.port, path, header)
    assert (status, asks, body) == (401, "Bearer", b"this process wants the bearer token of metrics\n")


def test_with_the_token_everything_is_as_without_one(server: MetricsServer) -> None:
    """Metrics, discovery, profiles, and the list of what there is."""
    answers = {path: get(server.port, path, TOKEN.header) for path in ("/metrics", "/targets", "/profile", "/nothing")}
    assert {path: answer[0] for path, answer in answers.items()} == {
        "/metrics": 200,
        "/targets": 200,
        "/profile": 200,
        "/nothing": 404,
    }
    assert not any(SECRET.encode() in body for _, _, body in answers.values())


@pytest.mark.parametrize("path", sorted(PROBES))
def test_probes_bear_no_token(server: MetricsServer, path: str) -> None:
    """A kubelet has none."""
    assert get(server.port, f"{path}?from=kubelet")[0] != 401


def test_a_wrong_token_is_no_news(server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
    """What a stranger sends does not get into the log, be it somebody's real secret."""
    with caplog.at_level(logging.DEBUG):
        get(server.port, "/metrics", "Bearer somebody-elses-secret")
    assert caplog.records == []
