"""Kubernetes' notation of amounts."""

from __future__ import annotations

from fractions import Fraction

SUFFIXES = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "m": Fraction(1, 1000),
}


def amount(text: str | int) -> Fraction:
    """`500m`, `8Gi`, `2` as a number. Raises ValueError."""
    text = str(text)
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)
