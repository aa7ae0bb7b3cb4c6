"""The bearer token that guards what a process serves: read from a file, compared in constant time, never shown.

file ──► MetricsToken ──► server: admits(header)?      client: header
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigError

TOKEN_FILE_VARIABLE = "TRUESTEP_METRICS_TOKEN_FILE"
SHORTEST, LONGEST = 16, 4096
ALPHABET = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # b64token of RFC 6750, section 2.1
SCHEME = "bearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsToken:
    """A secret that whoever asks for metrics has to know. No text of this object holds it but `header`.

    Attributes:
        secret: as it stands in the file, without white space around it.
    """

    secret: str = field(repr=False)

    @property
    def header(self) -> str:
        """Value of `Authorization` in a request."""
        return f"Bearer {self.secret}"

    def admits(self, authorization: str) -> bool:
        """Whether this is the header of somebody who knows the token; takes equally long for every wrong one."""
        scheme, _, given = authorization.partition(" ")
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self.secret.encode())
        return right and scheme.lower() == SCHEME


def token_file(configured: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the token lies: as configured, else as TRUESTEP_METRICS_TOKEN_FILE says; None is no token."""
    named = configured or environment.get(TOKEN_FILE_VARIABLE, "")
    return Path(named) if named else None


def read_token(file: Path | None) -> MetricsToken | None:
    """The token in `file`; None where there is no file. The error never shows what the file holds.

    Raises:
        ConfigError: it cannot be read, or holds no token.
    """
    if file is None:
        return None
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds other characters than ASCII"
        raise ConfigError(
            "the file with the token of metrics cannot be read",
            got=f"{file} ({reason})",
            fix=f"see metrics.token_file and {TOKEN_FILE_VARIABLE}",
        ) from None
    if not (SHORTEST <= len(text) <= LONGEST and ALPHABET.fullmatch(text)):
        raise ConfigError(
            f"the file {file} holds no token of metrics",
            got=f"{len(text)} characters",
            allowed=f"{SHORTEST} to {LONGEST} letters, digits and - . _ ~ + /, on one line",
            fix="make one: python -c 'import secrets; print(secrets.token_hex(32))'",
        )
    return MetricsToken(secret=text)
