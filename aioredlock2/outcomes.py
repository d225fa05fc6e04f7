"""What the nodes answered, as plain facts: carried by leases, reports and errors.

Nothing here does I/O or holds a secret: a cause is one short line, never a token or a password.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NodeOutcome", "NodeRelease", "Removal", "Vote", "describe"]


class Vote(enum.Enum):
    """One node's answer in one round."""

    PENDING = "pending"
    """Not heard yet, or not asked because the others had decided the round."""
    GRANTED = "granted"
    """Yes, this token holds the key."""
    DENIED = "denied"
    """No: another token holds the key, or (for an extension) this one doesn't any more."""
    FAULTED = "faulted"
    """An error instead of an answer: not connected, refused by the server, connection lost."""
    MISSING = "missing"
    """Silence until the deadline."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """One node's vote in the round that decided, with the cause where it was no clean answer."""

    node: str
    """The node's name, as in ``Redlock.nodes``."""
    vote: Vote
    cause: str = ""
    """One readable line, empty where the vote says it all."""


class Removal(enum.Enum):
    """What became of the key on one node at a release."""

    DELETED = "deleted"
    """It was there with this lease's token and is gone."""
    ABSENT = "absent"
    """There was no key any more: it had expired, or the node had lost it."""
    OTHER_OWNER = "other owner"
    """Something else lies under the key; it was left alone."""
    UNREACHABLE = "unreachable"
    """No answer; the delete is sent again if the node comes back before the ttl ends."""
    PENDING = "pending"
    """Sent, not answered yet; final when the node timeout has passed."""
    NEVER_SENT = "never sent"
    """No command with this token ever went to this node: nothing to delete."""


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """One node's part in a release."""

    node: str
    removal: Removal
    cause: str = ""


def describe(outcomes: Sequence[NodeOutcome]) -> str:
    """One line for people: "2 of 5 granted, 1 denied, 2 unreachable (10.0.0.3:6379: refused)"."""
    counts = dict.fromkeys(Vote, 0)
    causes: dict[str, list[str]] = {}
    for outcome in outcomes:
        counts[outcome.vote] += 1
        if outcome.cause:
            causes.setdefault(outcome.cause, []).append(outcome.node)
    parts = [f"{counts[Vote.GRANTED]} of {len(outcomes)} granted"]
    if counts[Vote.DENIED]:
        parts.append(f"{counts[Vote.DENIED]} denied")
    if unreachable := counts[Vote.FAULTED] + counts[Vote.MISSING]:
        parts.append(f"{unreachable} unreachable")
    if counts[Vote.PENDING]:
        parts.append(f"{counts[Vote.PENDING]} not asked or not heard yet")
    text = ", ".join(parts)
    if causes:
        listed = "; ".join(f"{', '.join(nodes)}: {cause}" for cause, nodes in causes.items())
        text += f" ({listed})"
    return text
