"""Each check finds what it is for in a history written by hand, and nothing in a clean one."""

from __future__ import annotations

import dataclasses
import math

from tests.simulation.checks import GRANT_S_MAX, judge
from tests.simulation.history import (
    Attempt,
    Command,
    Expired,
    History,
    Removed,
    Stalls,
    Tenure,
    Wired,
)
from tests.simulation.options import Options, draw

PLAIN: Options = next(options for seed in range(99) if not (options := draw(seed)).broken)
OPTIONS = dataclasses.replace(PLAIN, ttl=1.0, drift_factor=0.01)
A, B = b"a" * 32, b"b" * 32
WORTH = 0.988
"""What a ttl of one second is worth."""


class Story:
    """A history in the making: two processes, one server."""

    def __init__(self) -> None:
        self.history = History()
        for process in ("p1", "p2"):
            self.history.stalls[process] = Stalls([], [])

    def lease(
        self, process: str, token: bytes, at: float, released_at: float, fence: int | None = None
    ) -> Tenure:
        """Asked for at `at`, granted a millisecond later, released in good order."""
        attempt = Attempt(
            process, "x", 1.0, fence is not None, at, [(token, at)], at + 0.001, "granted"
        )
        until = at + WORTH
        tenure = Tenure(attempt, token, at + 0.001, until, fence, released_at=released_at)
        tenure.true_deadlines.append((at + 0.001, until))
        attempt.tenure = tenure
        self.history.attempts.append(attempt)
        self.history.tenures.append(tenure)
        wire = 1 if process == "p1" else 2
        self.history.wires[wire] = Wired(wire, process, "n1", 0.0, 0.0)
        self.send(process, "grant", token, at)
        if released_at < until:
            self.send(process, "revoke", token, released_at)
            self.history.removed.append(Removed(released_at, "n1", process, token, token))
        return tenure

    def send(self, process: str, verb: str, token: bytes, at: float) -> None:
        """A command leaves a process."""
        wire = 1 if process == "p1" else 2
        self.history.commands.append(Command(at, process, "n1", wire, verb, token, 1.0))

    def found(self, options: Options = OPTIONS) -> list[str]:
        """The kinds of violations."""
        self.history.commands.sort(key=lambda command: command.at)
        return [line.split()[1] for line in judge(self.history, options).violations]


def clean() -> Story:
    """One lease after the other."""
    story = Story()
    story.lease("p1", A, 1.0, 1.5, fence=1)
    story.lease("p2", B, 1.6, 1.9, fence=2)
    return story


def test_a_clean_history_has_no_violation() -> None:
    assert clean().found() == []


def test_two_holders_at_once_are_an_overlap() -> None:
    story = Story()
    story.lease("p1", A, 1.0, 1.5)
    story.lease("p2", B, 1.4, 1.9)
    assert story.found() == ["OVERLAP"]


def test_a_short_lease_inside_a_long_one_does_not_hide_the_next() -> None:
    story = Story()
    story.lease("p1", A, 1.0, 1.8)
    story.lease("p2", B, 1.1, 1.2)
    story.lease("p2", b"c" * 32, 1.3, 1.4)
    assert story.found() == ["OVERLAP", "OVERLAP"]


def test_an_overlap_after_a_broken_assumption_is_explained() -> None:
    story = Story()
    story.lease("p1", A, 1.0, 1.5, fence=1)
    story.lease("p2", B, 1.4, 1.9, fence=2)
    options = dataclasses.replace(OPTIONS, broken=frozenset(["flush"]))
    story.history.broken.append((1.45, "n1 is flushed"))
    assert story.found(options) == ["OVERLAP"], "it was broken only afterwards"
    story.history.broken.insert(0, (1.2, "n1 is flushed"))
    assert story.found(options) == []
    assert "n1 is flushed" in judge(story.history, options).explained[0]


def test_a_dead_holder_does_not_hold() -> None:
    story = Story()
    story.lease("p1", A, 1.0, math.inf)
    story.history.stalls["p1"].died_at = 1.3
    story.lease("p2", B, 1.4, 1.9)
    assert story.found() == []


def test_a_fence_that_does_not_grow() -> None:
    story = Story()
    story.lease("p1", A, 1.0, 1.5, fence=7)
    story.lease("p2", B, 1.6, 1.9, fence=6)
    assert story.found() == ["FENCE"]


def test_a_fence_that_is_given_twice() -> None:
    story = Story()
    story.lease("p1", A, 1.0, 1.5, fence=7)
    story.lease("p2", B, 1.6, 1.9, fence=7)
    assert story.found() == ["FENCE", "FENCE"]


def test_a_deadline_that_no_command_gives() -> None:
    story = clean()
    tenure = story.history.tenures[0]
    tenure.until += 0.1
    tenure.true_deadlines.append((1.4, tenure.until))
    assert story.found() == ["DEADLINE"]
    story.send("p1", "renew", A, 1.2)
    assert story.found() == []


def test_an_extension_of_what_was_over() -> None:
    story = Story()
    tenure = story.lease("p1", A, 1.0, 2.5)
    story.send("p1", "renew", A, 1.9)
    tenure.true_deadlines.append((2.1, tenure.until + 0.9))
    tenure.until += 0.9
    assert story.found() == ["REVIVED"]


def test_a_grant_that_is_worth_too_little() -> None:
    story = Story()
    tenure = story.lease("p1", A, 1.0, 1.2)
    tenure.until -= 0.5
    tenure.true_deadlines[0] = (1.001, tenure.until)
    assert story.found() == ["WORTHLESS"]


def test_a_loss_that_nobody_is_told() -> None:
    story = Story()
    tenure = story.lease("p1", A, 1.0, 3.0)
    assert story.found() == ["UNTOLD"]
    tenure.told_at = tenure.until + 0.0005
    assert story.found() == []
    tenure.told_at = tenure.until + 0.05
    assert story.found() == ["UNTOLD"]
    story.history.stalls["p1"].stalls.append((1.9, tenure.until + 0.0499))
    assert story.found() == [], "it did not run any earlier"


def test_a_key_left_behind() -> None:
    story = clean()
    story.history.removed.clear()
    story.history.commands = [c for c in story.history.commands if c.verb == "grant"]
    story.history.expired.append(Expired(2.0, "n1", A))
    assert story.found() == ["LEFT"]
    story.history.wires[1].down_at = 1.45
    assert story.found() == [], "it could not"


def test_a_healed_system_that_does_not_grant() -> None:
    story = clean()
    attempt = story.history.attempts[0]
    attempt.must = True
    assert story.found() == []
    attempt.ended_at = attempt.called_at + GRANT_S_MAX + 0.1
    assert story.found() == ["NOT"]


def test_a_token_sent_after_its_end() -> None:
    for verb, at in (("renew", 1.7), ("grant", 1.7)):
        story = clean()
        story.send("p1", verb, A, at)
        assert story.found() == ["SENT"], verb


def test_a_token_sent_past_its_validity() -> None:
    story = Story()
    tenure = story.lease("p1", A, 1.0, 2.5)
    tenure.told_at = tenure.until
    story.send("p1", "renew", A, 2.1)
    assert story.found() == ["SENT"]


def test_a_foreign_key_removed() -> None:
    story = clean()
    story.history.removed.append(Removed(1.7, "n1", "p1", B, b""))
    assert story.found() == ["FOREIGN"]


def test_oddities_are_violations() -> None:
    story = clean()
    story.history.oddities.append("1.0 ODD thing")
    assert story.found() == ["ODD"]
