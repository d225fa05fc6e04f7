"""The demo's settings refuse what can't work."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aioredlock2._demo.settings import LIMITS, Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 0),
        ("nodes", 16),
        ("workers", 0),
        ("workers", -1),
        ("seconds", 0.5),
        ("seconds", math.inf),
        ("seconds", math.nan),
        ("ttl", 0.1),
        ("ttl", 2.1),
        ("ttl", math.nan),
    ],
)
def test_a_value_out_of_its_limits_is_refused_with_them(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be from .* to .*, not"):
        Settings(**{name: value})


@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("which", [0, 1])
def test_the_limits_themselves_are_allowed(name: str, which: int) -> None:
    value: Any = LIMITS[name][which]
    assert getattr(Settings(**{name: value}), name) == value
