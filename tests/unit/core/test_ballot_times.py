"""When a round is decided, and what it is then worth: all votes of 1 to 5 nodes at all times.

The votes come one after the other, a second apart, in every sequence; the node timeout ends at every
place between them, and so does the validity. The reference needs no ballot: it looks for the moment at
which the n-th vote of a kind came.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from aioredlock2._core.ballot import Ballot, Rule, Verdict, grant_rule, renew_rule
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2.outcomes import Vote

GRANTED, DENIED, FAULTED = Vote.GRANTED, Vote.DENIED, Vote.FAULTED
KINDS = (GRANTED, DENIED, FAULTED)
STARTED_AT = 1000.0

Votes = tuple[Vote, ...]


class Timed(Ballot):
    """A ballot that knows when it was decided."""

    def __init__(self, nodes: int, rule: Rule) -> None:
        super().__init__(nodes, rule)
        self.now = self.decided_at = math.inf

    def on_verdict(self) -> None:
        self.decided_at = self.now


def hold(rule: Rule, votes: Votes, deadline: float) -> Timed:
    """The round, with vote n at second n + 1 and the end at `deadline`."""
    ballot = Timed(len(votes), rule)
    for index, vote in enumerate(votes):
        if index + 1 > deadline:
            break
        ballot.now = index + 1
        ballot.cast(index, vote)
    ballot.now = deadline
    ballot.expire()
    for index, vote in enumerate(votes):  # what comes after the end changes nothing
        ballot.cast(index, vote)
    return ballot


def nth(votes: Votes, number: int, *kinds: Vote) -> float:
    """When the `number`-th vote of these kinds came."""
    times = [index + 1 for index, vote in enumerate(votes) if vote in kinds]
    return times[number - 1] if len(times) >= number else math.inf


def rounds(nodes: int) -> Iterator[tuple[Votes, float]]:
    """Every sequence of votes, with every place for the end of the node timeout."""
    places = [place + 0.5 for place in range(nodes + 1)]
    return itertools.product(itertools.product(KINDS, repeat=nodes), places)


@pytest.mark.parametrize("nodes", range(1, 6))
def test_f002_a_lock_is_acquired_by_the_quorum_that_comes_in_time(nodes: int) -> None:
    quorum = nodes // 2 + 1
    for votes, deadline in rounds(nodes):
        ballot = hold(grant_rule, votes, deadline)
        won_at = nth(votes, quorum, GRANTED)
        hopeless_at = nth(votes, nodes - quorum + 1, DENIED, FAULTED)
        assert ballot.decided_at == min(won_at, hopeless_at, deadline)
        assert (ballot.verdict is Verdict.WON) == (won_at < deadline)


@pytest.mark.parametrize("nodes", range(1, 6))
def test_h26_an_extension_counts_before_both_deadlines_or_not_at_all(nodes: int) -> None:
    """A quorum of yes before the node timeout; a blocking set of no is a loss, silence is neither."""
    quorum = nodes // 2 + 1
    for votes, deadline in rounds(nodes):
        ballot = hold(renew_rule, votes, deadline)
        won_at = nth(votes, quorum, GRANTED)
        lost_at = nth(votes, nodes - quorum + 1, DENIED)
        assert (ballot.verdict is Verdict.WON) == (won_at < min(deadline, lost_at))
        assert (ballot.verdict is Verdict.REFUSED) == (lost_at < min(deadline, won_at))
        if ballot.verdict is not Verdict.UNREACHABLE:
            assert ballot.decided_at == min(won_at, lost_at)
        assert ballot.decided_at <= deadline


@pytest.mark.parametrize("nodes", range(1, 6))
@pytest.mark.parametrize("rule", [grant_rule, renew_rule])
def test_h03_what_is_decided_too_late_is_worth_nothing(nodes: int, rule: Rule) -> None:
    """The validity ends at every place between the votes as well: counted from the first byte."""
    quorum = nodes // 2 + 1
    for votes, deadline in rounds(nodes):
        ballot = hold(rule, votes, deadline)
        for ttl in (1, 2, 3, 4, 5, 6):
            terms = LockTerms(ttl, ttl * 1000, 0.5, node_timeout=9, renew_every=1, slot=1)
            left = valid_until(STARTED_AT, terms) - (STARTED_AT + ballot.decided_at)
            holds = ballot.verdict is Verdict.WON and left > 0
            assert holds == (nth(votes, quorum, GRANTED) < min(deadline, ttl - 0.5))
