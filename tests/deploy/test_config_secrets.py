"""A configuration holds no secret: it is recorded, and records are shown."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import ConfigError
from deploy.config import parse_config


def config(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"env": {"id": "E-v0", "kwargs": kwargs}}


@pytest.mark.parametrize(
    "key",
    ["token", "api_key", "apikey", "API-KEY", "auth_token", "db.password", "secret", "aws_secret_access_key", "passwd"],
)
def test_text_under_the_name_of_a_credential_is_refused_unseen(key: str) -> None:
    """At any depth; the error names the key and shows nothing of the value."""
    for kwargs, path in (({key: "hunter2-hunter2"}, key), ({"server": {key: "hunter2-hunter2"}}, f"server.{key}")):
        with pytest.raises(ConfigError) as caught:
            parse_config(config(kwargs))
        assert caught.value.what.startswith(f"env.kwargs.{path} sounds like a secret")
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_tokens": "many"},
        {"token": 3},
        {"keyboard": "us"},
        {"key": "C major"},
        {"secret": ""},
        {"author": "Sutton"},
    ],
)
def test_what_only_sounds_alike_is_left_alone(kwargs: dict[str, Any]) -> None:
    """Other words, numbers, and nothing at all."""
    assert parse_config(config(kwargs)).env.kwargs == kwargs
