"""Counting votes, against an oracle that knows no formulas: it tries out every way to go on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.ballot import (
    Ballot,
    Rule,
    Verdict,
    grant_rule,
    inspect_rule,
    quorum_of,
    renew_rule,
    revoke_rule,
)
from aioredlock2.outcomes import Vote

GRANTED, DENIED, FAULTED, MISSING = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING
PENDING, WON, REFUSED, UNREACHABLE = Verdict
RULES = {"grant": grant_rule, "renew": renew_rule, "revoke": revoke_rule}
MAJORITIES = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4}
"""From the Redlock page and F002, written down rather than computed."""

Counts = tuple[int, int, int]
"""Granted, denied, broken."""


def completions(nodes: int, counts: Counts) -> list[Counts]:
    """All counts that the votes still open can lead to."""
    granted, denied, broken = counts
    unheard = nodes - granted - denied - broken
    return [
        (granted + more, denied + less, broken + unheard - more - less)
        for more in range(unheard + 1)
        for less in range(unheard - more + 1)
    ]


def wins(verb: str, nodes: int, counts: Counts) -> bool:
    """Whether a full count is a success."""
    granted, denied, _ = counts
    return (granted + denied if verb == "revoke" else granted) >= MAJORITIES[nodes]


def proves_refusal(verb: str, nodes: int, counts: Counts) -> bool:
    """Whether denials alone show that no majority can have the key: only that is a refusal."""
    return verb == "renew" and nodes - counts[1] < MAJORITIES[nodes]


@functools.cache
def oracle(verb: str, nodes: int, counts: Counts) -> Verdict:
    """The verdict at these counts, if none was given before."""
    ends = completions(nodes, counts)
    if all(wins(verb, nodes, end) for end in ends):
        return WON
    if all(proves_refusal(verb, nodes, end) for end in ends):
        return REFUSED
    if any(wins(verb, nodes, end) or proves_refusal(verb, nodes, end) for end in ends):
        return PENDING
    # Lost. Whose fault: would the nodes that are not broken have been enough for a majority?
    enough_left = nodes - counts[2] >= MAJORITIES[nodes]
    return REFUSED if verb == "grant" and enough_left else UNREACHABLE


def prefix_verdicts(verb: str, nodes: int, votes: Iterable[Vote]) -> list[Verdict]:
    """The verdict after each vote: the first one stands."""
    verdict, verdicts = PENDING, []
    granted = denied = broken = 0
    for vote in votes:
        granted += vote is GRANTED
        denied += vote is DENIED
        broken += vote in (FAULTED, MISSING)
        if verdict is PENDING:
            verdict = oracle(verb, nodes, (granted, denied, broken))
        verdicts.append(verdict)
    return verdicts


class Told(Ballot):
    """A ballot that counts what it is told."""

    def __init__(self, nodes: int, rule: Rule) -> None:
        super().__init__(nodes, rule)
        self.verdicts: list[Verdict] = []
        self.closings = 0

    def on_verdict(self) -> None:
        self.verdicts.append(self.verdict)

    def on_last_vote(self) -> None:
        self.closings += 1


@pytest.mark.parametrize(("nodes", "orders"), [(1, 3), (2, 18), (3, 162), (4, 1944), (5, 29_160)])
@pytest.mark.parametrize("verb", RULES)
def test_every_order_of_votes_is_judged_as_the_oracle_does(
    verb: str, nodes: int, orders: int
) -> None:
    """All 3^N sets of votes in all N! orders, the verdict looked at after each vote."""
    rule = RULES[verb]
    permutations = list(itertools.permutations(range(nodes)))
    for votes in itertools.product((GRANTED, DENIED, FAULTED), repeat=nodes):
        for order in permutations:
            ballot = Ballot(nodes, rule)
            seen = []
            for index in order:
                ballot.cast(index, votes[index])
                seen.append(ballot.verdict)
            assert seen == prefix_verdicts(verb, nodes, (votes[index] for index in order))
            orders -= 1
    assert orders == 0


@pytest.mark.parametrize(("nodes", "majority"), MAJORITIES.items())
def test_f002_the_quorum_is_the_majority_of_the_configured_nodes(nodes: int, majority: int) -> None:
    assert quorum_of(nodes) == majority
    ballot = Ballot(nodes, grant_rule)
    assert ballot.quorum == majority
    for index in range(majority):
        assert ballot.verdict is PENDING
        ballot.cast(index, GRANTED)
    assert ballot.verdict is WON


@pytest.mark.parametrize("nodes", [2, 4, 6])
@pytest.mark.parametrize("broken", [DENIED, FAULTED])
def test_f002_half_of_an_even_number_is_no_quorum(nodes: int, broken: Vote) -> None:
    ballot = Ballot(nodes, grant_rule)
    for index in range(nodes):
        ballot.cast(index, GRANTED if index < nodes // 2 else broken)
    assert ballot.verdict is (REFUSED if broken is DENIED else UNREACHABLE)


CASTS = st.integers(1, 7).flatmap(
    lambda nodes: st.tuples(
        st.just(nodes),
        st.lists(
            st.tuples(
                st.integers(0, nodes - 1), st.sampled_from((GRANTED, DENIED, FAULTED, MISSING))
            ),
            max_size=3 * nodes,
        ),
    )
)


@given(case=CASTS, verb=st.sampled_from(sorted(RULES)))
def test_any_number_of_nodes_any_order_votes_repeated_or_missing(
    case: tuple[int, Sequence[tuple[int, Vote]]], verb: str
) -> None:
    """The first vote of each node counts; whoever has not voted when time is up is missing."""
    nodes, casts = case
    ballot = Told(nodes, RULES[verb])
    counted: dict[int, Vote] = {}
    for index, vote in casts:
        ballot.cast(index, vote)
        counted.setdefault(index, vote)
        verdicts = prefix_verdicts(verb, nodes, counted.values())
        assert ballot.verdict is verdicts[-1]
        assert ballot.unheard == nodes - len(counted)
    ballot.expire()
    for index in range(nodes):
        counted.setdefault(index, MISSING)
    assert ballot.votes == [counted[index] for index in range(nodes)]
    verdict = prefix_verdicts(verb, nodes, counted.values())[-1]
    assert [verdict] == ballot.verdicts
    assert ballot.closings == 1
    assert ballot.unheard == 0


@given(case=CASTS)
def test_an_inspection_hears_everybody_out(case: tuple[int, Sequence[tuple[int, Vote]]]) -> None:
    nodes, casts = case
    ballot = Ballot(nodes, inspect_rule)
    for index, vote in casts:
        ballot.cast(index, vote)
        assert (ballot.verdict is PENDING) == (Vote.PENDING in ballot.votes)
    ballot.expire()
    answers = sum(vote in (GRANTED, DENIED) for vote in ballot.votes)
    assert ballot.verdict is (WON if answers >= MAJORITIES[nodes] else UNREACHABLE)


def test_h21_a_late_vote_is_written_down_and_changes_nothing() -> None:
    ballot = Told(3, grant_rule)
    ballot.cast(0, GRANTED)
    ballot.cast(1, GRANTED)
    ballot.cast(2, DENIED)
    assert ballot.verdict is WON
    assert ballot.votes == [GRANTED, GRANTED, DENIED]
    assert ballot.verdicts == [WON]
    assert ballot.closings == 1


def test_a_node_votes_once() -> None:
    """An answer after the deadline changes neither the vote nor the counts nor the cause."""
    ballot = Told(3, grant_rule)
    ballot.cast(0, FAULTED, "refused")
    ballot.cast(0, GRANTED)
    ballot.expire()
    ballot.cast(1, GRANTED)
    ballot.cast(2, GRANTED, "late")
    assert ballot.votes == [FAULTED, MISSING, MISSING]
    assert ballot.causes == ["refused", "no answer in time", "no answer in time"]
    assert (ballot.granted, ballot.denied, ballot.broken) == (0, 0, 3)
    assert ballot.verdicts == [UNREACHABLE]
    assert ballot.closings == 1


def test_a_skipped_node_was_sent_nothing() -> None:
    ballot = Ballot(3, grant_rule)
    ballot.cast(0, FAULTED, "connection lost")
    ballot.skip(1, FAULTED, "not connected")
    ballot.skip(2, MISSING, "still owes earlier answers")
    assert ballot.unsent == 0b110
    assert ballot.broken == 3
    assert ballot.causes[1:] == ["not connected", "still owes earlier answers"]


def test_a_round_without_anyone_to_tell_ends_as_well() -> None:
    """The hooks of a plain ballot do nothing."""
    ballot = Ballot(1, grant_rule)
    ballot.expire()
    assert ballot.verdict is UNREACHABLE
    assert not ballot.withdrawn
