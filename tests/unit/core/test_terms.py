"""What may be asked for, and what follows from a ttl."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2 import ConfigurationError
from aioredlock2._core.terms import (
    NAME_BYTES_MAX,
    SECONDS_MAX,
    LockTerms,
    number,
    resource_bytes,
    seconds,
)


def terms(ttl: object, drift_factor: float = 0.01, node_timeout: float | None = None) -> LockTerms:
    return LockTerms.of(ttl, drift_factor=drift_factor, node_timeout=node_timeout)


# --- durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (SECONDS_MAX, 2**53 / 1000),
    ],
)
def test_f018_seconds_are_int_float_or_timedelta(given: object, expected: float) -> None:
    number = seconds("wait", given)
    assert number == expected
    assert type(number) is float


@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, -0.0, -1, -0.001, math.nan, math.inf, -math.inf, 1e300, 10**400),
        *(SECONDS_MAX * 2, timedelta(0), timedelta(seconds=-1), timedelta.max),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_f034_a_duration_that_makes_no_sense_is_refused(value: object) -> None:
    """Zero, negative, NaN, infinite or beyond exact milliseconds; the message names all of it."""
    with pytest.raises(ConfigurationError) as caught:
        seconds("ttl", value)
    assert str(caught.value).startswith(f"ttl={value!r}"[:60])
    assert "must be more than 0 and at most 9007199254740.99 seconds" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_zero_is_allowed_where_it_makes_sense() -> None:
    assert seconds("wait", 0, zero=True) == 0.0
    assert seconds("wait", timedelta(0), zero=True) == 0.0
    with pytest.raises(ConfigurationError, match="must be 0 or more"):
        seconds("wait", -1, zero=True)


@pytest.mark.parametrize(
    "value", [True, False, None, "10", b"10", 1j, [1], Decimal(1), Fraction(1)]
)
def test_f034_a_duration_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError) as caught:
        seconds("ttl", value)
    assert str(caught.value).startswith(f"ttl={value!r}: must be more than 0")
    assert str(caught.value).endswith(f"as int, float or timedelta, not {type(value).__name__}")


@pytest.mark.parametrize(("given", "expected"), [(1, 1.0), (-2.5, -2.5), (10**400, math.inf)])
def test_numbers_are_int_or_float_of_any_size(given: object, expected: float) -> None:
    assert number("growth", given) == expected


@pytest.mark.parametrize("value", [True, None, "2", timedelta(seconds=2), 1j])
def test_a_number_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="must be an int or float, not"):
        number("growth", value)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("a", b"a"),
        (b"a", b"a"),
        ("rechnung:ä€😀", "rechnung:ä€😀".encode()),
        ("a\0 b\r\n{c}", b"a\0 b\r\n{c}"),
        (b"\xff\xfe", b"\xff\xfe"),
        ("x" * 10_000, b"x" * 10_000),
    ],
)
def test_f110_a_name_is_taken_as_it_is(resource: str | bytes, expected: bytes) -> None:
    assert resource_bytes(resource) == expected


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_f110_different_texts_stay_different(resource: str) -> None:
    """The bytes lead back to the text: nothing is lost on the way."""
    assert resource_bytes(resource).decode() == resource


@pytest.mark.parametrize("name", ["x" * NAME_BYTES_MAX, "\N{LOCK}" * (NAME_BYTES_MAX // 4)])
def test_a_name_that_is_too_long_is_refused_and_not_shown_whole(name: str) -> None:
    assert len(resource_bytes(name)) == NAME_BYTES_MAX
    for longer in (name + "x", name.encode() + b"x"):
        with pytest.raises(ConfigurationError, match="at most 65536 bytes, not 65537") as caught:
            resource_bytes(longer)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("empty", ["", b""])
def test_f110_an_empty_name_is_refused(empty: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="must be non-empty"):
        resource_bytes(empty)


def test_f110_a_text_without_utf8_form_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'\\udc80': must be text that has a UTF-8 form"):
        resource_bytes("\udc80")


@pytest.mark.parametrize("resource", [1, None, object(), bytearray(b"a"), memoryview(b"a"), ("a",)])
def test_f110_a_name_of_another_type_is_a_type_error(resource: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(resource).__name__}"):
        resource_bytes(resource)


# --- terms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "milliseconds"),
    [(0.05, 50), (0.5, 500), (1.1, 1100), (1.5, 1500), (1.999, 1999), (2.0001, 2001), (10, 10_000)],
)
def test_f033_milliseconds_are_exact_and_rounded_up(ttl: float, milliseconds: int) -> None:
    assert terms(ttl).ttl_ms == milliseconds


@given(st.floats(0.05, 1e9))
def test_f033_a_key_never_lives_shorter_than_asked(ttl: float) -> None:
    """Up to the nanosecond that float milliseconds are cleared of."""
    asked = terms(ttl)
    assert asked.ttl == ttl
    assert ttl - 1e-9 - ttl * 1e-15 <= asked.ttl_ms / 1000 < ttl + 0.001 + ttl * 1e-15


def test_drift_is_its_share_of_the_ttl_and_two_milliseconds() -> None:
    assert terms(10).drift == pytest.approx(0.102)
    assert terms(10, drift_factor=0).drift == pytest.approx(0.002)
    assert terms(10, drift_factor=0.5).drift == pytest.approx(5.002)


@pytest.mark.parametrize(
    ("ttl", "timeout"), [(0.1, 0.005), (1, 0.005), (2, 0.01), (5, 0.025), (10, 0.05), (3600, 0.05)]
)
def test_f012_the_node_timeout_is_half_a_percent_of_the_ttl_within_bounds(
    ttl: float, timeout: float
) -> None:
    assert terms(ttl).node_timeout == pytest.approx(timeout)


def test_a_node_timeout_that_was_given_stands() -> None:
    assert terms(10, node_timeout=1.5).node_timeout == 1.5


@given(st.floats(0.05, 1e6))
def test_f035_renewal_comes_in_the_first_third(ttl: float) -> None:
    asked = terms(ttl)
    assert asked.renew_every == pytest.approx(ttl / 3)
    assert asked.slot == pytest.approx(ttl / 64)
    assert asked.renew_every + 2 * asked.node_timeout < ttl - asked.drift


@pytest.mark.parametrize("ttl", [0.001, 0.005, 0.012, timedelta(milliseconds=10)])
def test_f035_a_ttl_that_two_rounds_use_up_is_refused(ttl: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        terms(ttl)
    assert str(caught.value).startswith(f"ttl={ttl!r}: must be more than 0.012")
    assert "two node timeouts (0.0100 s) use up the rest" in str(caught.value)


@pytest.mark.parametrize(("node_timeout", "drift_factor"), [(5, 0.0), (0.1, 0.99), (4.96, 0.01)])
def test_a_ttl_is_judged_with_the_settings_given(node_timeout: float, drift_factor: float) -> None:
    with pytest.raises(ConfigurationError, match="ttl=10: must be more than 10"):
        terms(10, node_timeout=node_timeout, drift_factor=drift_factor)


def test_terms_can_be_shared() -> None:
    asked = terms(10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.ttl = 5.0  # type: ignore[misc]
