"""What the nodes have under a name, as the user is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aioredlock2._core.ballot import Ballot
from aioredlock2._node import NON_LOCK, Node, Sighting
from aioredlock2._runtime import digest

__all__ = ["Inspection", "NodeSighting", "inspection", "is_locked"]


@dataclass(frozen=True, slots=True)
class NodeSighting:
    """What one node has under a resource's key."""

    node: str
    holder: str | None
    """A short digest of the token there (`Lease.digest`); None if there is none, or no answer."""
    remaining: float | None
    """Seconds until the key expires there; infinite if it never does, which is none of our doing;
    None if there is none, or no answer."""
    cause: str = ""
    """Why there is no answer, empty if there is one."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Who holds a resource, as far as the nodes tell. Old the moment it is read."""

    resource: str | bytes
    holder: str | None
    """The digest of the token that a quorum has; None if none has one."""
    remaining: float | None
    """Seconds until the holder's quorum breaks unless it is extended; None without a holder."""
    nodes: tuple[NodeSighting, ...]


def inspection(resource: str | bytes, nodes: Sequence[Node], looked: Ballot) -> Inspection:
    """The report on a round in which every node was asked what it has."""
    sightings = [cause if isinstance(cause, Sighting) else None for cause in looked.causes]
    holder = _quorum_holder(sightings, looked.quorum)
    lefts = sorted(
        (seen.remaining for seen in sightings if seen is not None and seen.token == holder),
        reverse=True,
    )
    return Inspection(
        resource=resource,
        holder=None if holder is None else digest(holder),
        remaining=None if holder is None else lefts[looked.quorum - 1],
        nodes=tuple(
            NodeSighting(
                node.name,
                None if seen is None else digest(seen.token),
                None if seen is None else seen.remaining,
                cause if isinstance(cause, str) else "",
            )
            for node, seen, cause in zip(nodes, sightings, looked.causes, strict=True)
        ),
    )


def is_locked(looked: Ballot) -> bool | None:
    """Whether anybody holds the name; None if too few nodes answered to tell."""
    sightings = [cause for cause in looked.causes if isinstance(cause, Sighting)]
    if _quorum_holder(sightings, looked.quorum) is not None:
        return True
    strange = sum(cause == NON_LOCK for cause in looked.causes)
    if strange >= looked.blocking:
        return True  # whatever it is, nobody can get the lock
    most = max(Counter(seen.token for seen in sightings).values(), default=0)
    return False if most + looked.broken < looked.quorum else None


def _quorum_holder(sightings: Iterable[Sighting | None], quorum: int) -> bytes | None:
    counted = Counter(seen.token for seen in sightings if seen is not None)
    token, count = max(counted.items(), key=lambda item: item[1], default=(b"", 0))
    return token if count >= quorum else None
