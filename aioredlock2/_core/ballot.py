"""Counting votes: one ballot per round, decided as soon as the outcome can't change.

With N configured nodes the quorum is N // 2 + 1 and a *blocking set* is N - quorum + 1 nodes: as many
as it takes to make a quorum impossible. "Broken" stands for faulted or missing. The rules, one per verb:

    grant     WON          granted >= quorum
              UNREACHABLE  broken >= blocking
              REFUSED      denied + broken >= blocking
    renew     WON          granted >= quorum
              REFUSED      denied >= blocking          (the lease is lost)
              UNREACHABLE  neither can come any more   (nobody knows: try again)
    revoke    WON          granted + denied >= quorum  (that many have certainly done it)
              UNREACHABLE  broken >= blocking
    inspect   WON or UNREACHABLE when every node was heard, by whether a quorum answered

A vote counts once: the first one of each node stands. Late votes after the verdict are still written
down (they tell where the key is), but change no verdict. The file knows nothing of time: the engine
ends a round by `expire`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from aioredlock2.outcomes import Vote

__all__ = [
    "Ballot",
    "Rule",
    "Verdict",
    "grant_rule",
    "inspect_rule",
    "quorum_of",
    "renew_rule",
    "revoke_rule",
]


class Verdict(enum.Enum):
    """What a round came to."""

    PENDING = "pending"
    WON = "won"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


PENDING, WON, REFUSED, UNREACHABLE = Verdict
_UNHEARD, _GRANTED, _DENIED = Vote.PENDING, Vote.GRANTED, Vote.DENIED


def quorum_of(nodes: int) -> int:
    """The votes needed among `nodes` configured nodes: the majority, whatever is reachable."""
    return nodes // 2 + 1


class Ballot:
    """The votes of one round.

    A node is handed the ballot and its own index and calls `cast` once, at any time, in any order,
    or `skip` if the request never left. Subclasses are told by `on_verdict` (at most once) and
    `on_last_vote` (once, when all nodes were heard or the round expired).
    """

    __slots__ = (
        "blocking",
        "broken",
        "causes",
        "denied",
        "granted",
        "nodes",
        "quorum",
        "rule",
        "unheard",
        "unsent",
        "verdict",
        "votes",
        "withdrawn",
    )

    def __init__(self, nodes: int, rule: Rule) -> None:
        self.nodes = nodes
        self.quorum = nodes // 2 + 1
        self.blocking = nodes - self.quorum + 1
        """So many nodes can make a quorum impossible."""
        self.rule = rule
        self.verdict = PENDING
        self.votes = [_UNHEARD] * nodes
        self.causes: tuple[object, ...] | list[object] = (None,) * nodes
        """Per node: a line of text for a broken vote, a `Sighting` for an inspection, or None."""
        self.granted = 0
        self.denied = 0
        self.broken = 0
        self.unheard = nodes
        """How many nodes have not voted yet."""
        self.withdrawn = False
        """True once nothing more may be sent on behalf of this round."""
        self.unsent = 0
        """Bit i is set if node i never got the request: it can't have acted on it."""

    def cast(self, index: int, vote: Vote, cause: object = None) -> None:
        """Write down node `index`'s vote; a second one of the same node is ignored."""
        if self.votes[index] is not _UNHEARD:
            return
        self.votes[index] = vote
        self.unheard -= 1
        if vote is _GRANTED:
            self.granted += 1
        elif vote is _DENIED:
            self.denied += 1
        else:
            self.broken += 1
        if cause is not None:
            if isinstance(self.causes, tuple):
                self.causes = list(self.causes)  # most ballots never need one
            self.causes[index] = cause
        if self.verdict is PENDING:
            verdict = self.rule(self)
            if verdict is not PENDING:
                self.verdict = verdict
                self.on_verdict()
        if not self.unheard:
            self.on_last_vote()

    def awaits(self, index: int) -> bool:
        """Whether node `index` has not voted yet."""
        return self.votes[index] is _UNHEARD

    def skip(self, index: int, vote: Vote, cause: object = None) -> None:
        """Node `index` was not sent the request: a broken vote, and nothing to clean up there."""
        self.unsent |= 1 << index
        self.cast(index, vote, cause)

    def expire(self) -> None:
        """The deadline has passed: whoever has not voted is missing."""
        for index, vote in enumerate(self.votes):
            if vote is _UNHEARD:
                self.cast(index, Vote.MISSING, "no answer in time")

    def on_verdict(self) -> None:
        """The outcome can't change any more."""

    def on_last_vote(self) -> None:
        """No vote is open any more."""


Rule = Callable[[Ballot], Verdict]


def grant_rule(ballot: Ballot) -> Verdict:
    """Won at quorum; lost as soon as a quorum has become impossible."""
    if ballot.granted >= ballot.quorum:
        return WON
    if ballot.broken >= ballot.blocking:
        return UNREACHABLE
    return REFUSED if ballot.denied + ballot.broken >= ballot.blocking else PENDING


def renew_rule(ballot: Ballot) -> Verdict:
    """Only a blocking set of clear refusals is a refusal: errors and silence prove nothing."""
    if ballot.granted >= ballot.quorum:
        return WON
    if ballot.denied >= ballot.blocking:
        return REFUSED
    unheard = ballot.unheard
    if ballot.granted + unheard < ballot.quorum and ballot.denied + unheard < ballot.blocking:
        return UNREACHABLE
    return PENDING


def revoke_rule(ballot: Ballot) -> Verdict:
    """Done when a quorum answered, whatever it found."""
    if ballot.granted + ballot.denied >= ballot.quorum:
        return WON
    return UNREACHABLE if ballot.broken >= ballot.blocking else PENDING


def inspect_rule(ballot: Ballot) -> Verdict:
    """Looks at every node; useful if a quorum answered."""
    if ballot.unheard:
        return PENDING
    return WON if ballot.granted + ballot.denied >= ballot.quorum else UNREACHABLE
