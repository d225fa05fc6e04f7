"""The exceptions: their tree, their text, and that they survive a trip to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from aioredlock2 import errors
from aioredlock2.errors import (
    AcquiredTooLate,
    AcquireError,
    ConfigurationError,
    LeaseError,
    LeaseLost,
    LeaseReleased,
    LockContended,
    QuorumUnreachable,
    RedlockError,
)
from aioredlock2.outcomes import NodeOutcome, Vote

OUTCOMES = [
    NodeOutcome("10.0.0.1:6379", Vote.GRANTED),
    NodeOutcome("10.0.0.2:6379", Vote.DENIED),
    NodeOutcome("10.0.0.3:6379", Vote.FAULTED, "connection refused"),
]
ALL = [
    RedlockError("x"),
    ConfigurationError("ttl=0: must be more than 0 seconds, and finite"),
    AcquireError("x", 1.5, 3, OUTCOMES),
    LockContended("x", 1.5, 3, OUTCOMES, "hint"),
    QuorumUnreachable(b"\xff", 0.0, 1),
    AcquiredTooLate("x", 0.25, 1, OUTCOMES),
    LeaseError("x", "gone"),
    LeaseLost("x", "too many nodes no longer have its key"),
    LeaseReleased("x", "it was released"),
]


def through_pickle(error: RedlockError) -> RedlockError:
    there: RedlockError = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    return there


def tree(kind: type[Exception], depth: int = 0) -> list[tuple[int, str]]:
    """The class and its descendants, as they are defined."""
    rows = [(depth, kind.__name__)]
    for child in kind.__subclasses__():
        rows += tree(child, depth + 1)
    return rows


def test_the_tree_in_the_text_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = [line[4:] for line in errors.__doc__.splitlines() if line.startswith("    ")]
    documented = []
    for line in drawn:
        name = line.lstrip("│├└─ ").split()[0]
        documented.append((line.index(name) // 4, name))
    real = tree(RedlockError)
    assert sorted(documented) == sorted(real)
    assert {name for _, name in real} == set(errors.__all__)


def test_f057_not_acquired_and_lost_have_nothing_in_common_but_the_root() -> None:
    assert not issubclass(LeaseLost, AcquireError)
    assert not issubclass(AcquireError, LeaseError)


def test_a_wrong_value_is_a_value_error_and_nothing_else_is() -> None:
    assert issubclass(ConfigurationError, ValueError)
    assert not issubclass(AcquireError, ValueError)
    assert not issubclass(LeaseError, ValueError)
    assert not issubclass(RedlockError, (OSError, TimeoutError))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            LockContended("invoice:42", 1.5, 3, OUTCOMES),
            (
                "'invoice:42' is held by somebody else: not acquired after 1.500 s and 3 rounds: "
                "1 of 3 granted, 1 denied, 1 unreachable (10.0.0.3:6379: connection refused)"
            ),
        ),
        (
            LockContended("x", 0.2, 0, (), "this client itself holds it"),
            ("'x' not acquired after 0.200 s and 0 rounds; this client itself holds it"),
        ),
        (
            QuorumUnreachable(b"\xff", 0.0004, 1, OUTCOMES[2:]),
            (
                "b'\\xff' not acquired, too few nodes answered after 0.000 s and 1 round: "
                "0 of 1 granted, 1 unreachable (10.0.0.3:6379: connection refused)"
            ),
        ),
        (
            AcquiredTooLate("x", 0.4, 1, OUTCOMES[:1], "the round took 0.400 s of a ttl of 0.3 s"),
            (
                "'x' acquired too late to be used, given back after 0.400 s and 1 round: "
                "1 of 1 granted; the round took 0.400 s of a ttl of 0.3 s"
            ),
        ),
        (LeaseLost("x", "it expired"), "lease of 'x': it expired"),
        (LeaseReleased(b"x", "it was released"), "lease of b'x': it was released"),
    ],
)
def test_f117_the_text_can_be_read_on_its_own(error: RedlockError, text: str) -> None:
    assert str(error) == text
    assert "\n" not in text


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [through_pickle, copy.copy, copy.deepcopy])
def test_an_error_can_be_pickled_and_copied(
    error: RedlockError, copied: Callable[[RedlockError], RedlockError]
) -> None:
    other = copied(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_the_data_is_there_without_parsing_the_text() -> None:
    error = LockContended("x", 1.5, 3, OUTCOMES, "hint")
    assert (error.resource, error.elapsed, error.rounds, error.hint) == ("x", 1.5, 3, "hint")
    assert error.outcomes == tuple(OUTCOMES)
    assert LeaseLost("x", "why").reason == "why"


def test_outcomes_are_those_of_the_moment() -> None:
    """What becomes of the caller's list later doesn't change the error."""
    mutable = list(OUTCOMES)
    error = LockContended("x", 1.5, 3, mutable)
    mutable.clear()
    assert len(error.outcomes) == 3
