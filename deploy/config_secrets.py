"""No secret in a configuration: it is recorded, shown, compared and put on pages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.errors import ConfigError

NAME = re.compile(
    r"(?:^|[_\-.])(?:token|secret|password|passwd|passphrase|credentials?|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"(?:$|[_\-.])",
    re.IGNORECASE,
)


def check_no_secrets(values: Mapping[str, object], path: str) -> None:
    """Refuse text under a key that is named as a credential is; the error does not show it.

    Numbers and switches of such a name (`token: 3`) are none.

    Raises:
        ConfigError: naming the key.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            check_no_secrets(value, f"{path}.{key}")
        elif isinstance(value, str) and value and NAME.search(key):
            raise ConfigError(
                f"{path}.{key} sounds like a secret, and a configuration is no place for one: it is recorded",
                got=f"{len(value)} characters",
                fix="let the environment read it from a file or a variable that its process has",
            )
