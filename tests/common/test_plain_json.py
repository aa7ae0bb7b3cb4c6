"""JSON for the record: strict, lossless, canonical."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.plain_json import FLOAT_TAG, NotPlainError, dumps, loads

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8).filter(lambda key: key != FLOAT_TAG), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=PLAIN)
@settings(deadline=None, max_examples=200)
def test_plain_values_come_back_bit_for_bit_through_strict_json(value: Any) -> None:
    """NaN, infinities and -0.0 included; a strict reader accepts the text; encoding again gives the same text."""
    text = dumps(value)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert repr(loads(text)) == repr(value)
    assert dumps(loads(text)) == text
    assert text.isascii()


def test_golden_text() -> None:
    """By hand; this form is in checkpoints and may not change."""
    value = {"b": (1, 2.0), "a": [None, True, "é", -math.inf, math.nan]}
    assert dumps(value) == '{"b":[1,2.0],"a":[null,true,"\\u00e9",{"$float":"-inf"},{"$float":"nan"}]}'
    assert dumps(value, sort_keys=True).startswith('{"a":')


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": np.float64(1.0)}]}, "$.a[1].b: got float64"),
        ({"a": np.bool_(True)}, "$.a: got bool"),
        (b"bytes", "$: got bytes"),
        ({1: 2}, "$: got key 1"),
        ({"$float": 1}, "key '$float'"),
        ({"a": {1, 2}}, "$.a: got set"),
    ],
)
def test_what_is_not_plain_is_refused_by_path(value: Any, where: str) -> None:
    """Nothing is converted silently."""
    with pytest.raises(NotPlainError) as caught:
        dumps(value)
    assert where in str(caught.value)


def test_endless_nesting_is_refused() -> None:
    """A value that contains itself is an error, not a crash."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotPlainError, match="nesting deeper"):
        dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "1e999",
        b"\xff\xfe\xfd",
        "[" * 100_000,
        '{"$float":"1.5"}',
        '{"$float":"nan","x":1}',
    ],
)
def test_text_that_is_not_strict_json_is_refused(text: str | bytes) -> None:
    """Damaged, hostile or lenient JSON gives one kind of error."""
    with pytest.raises(NotPlainError):
        loads(text)
