"""What the engine knows of a node, and nothing more.

A node is one independent voter. It is asked a few things (`Verb`), always through one call,

    node.ask(request)

which returns nothing: the request is on its way (or queued behind earlier ones) when the call returns,
and the answer comes by `request.ballot.cast(index, vote, cause)`, where `index` is the node's own, told
by `open`. So a round costs no task, no future and no object per node. The contract of every kind of
node:

1.  GRANTED to a grant means: no other token can be granted here for at least `ttl_ms` after the node
    processed the request. Holding it longer is allowed; that costs only liveness.
2.  A renewal never re-creates a lost hold, and sets the remaining time (it never adds). A revoke
    removes this token only, and is idempotent.
3.  Requests take effect in the order of the calls while one connection lasts: a revoke asked after a
    grant can't overtake it. A revoke that may not have been executed when a connection breaks is sent
    again on the next one; the stray grant before it may live until its ttl. A request that the server
    refused and that is put in another form takes effect behind those asked meanwhile.
4.  Only a clear "yes, this token" is GRANTED. Trouble is FAULTED with a cause, never an exception.
    A grant or renewal is never sent twice because of a broken connection.
5.  A request that is never sent is told by `ballot.skip` (vote FAULTED or MISSING).
6.  A request may have no ballot: nobody waits for the answer, which is consumed and dropped.
7.  A fenced grant also answers with the node's grant counter, as the vote's cause: an integer above
    every value that the counter of this key ever had here. The counter never falls while the node
    remembers it. A confirmation raises it to `fence` at least, and is granted only where the key is
    still this token's. See `_core/fence.py`.
8.  Calls come from the loop's thread only and never raise.

The engine never branches on the kind of node; if it must, this contract is wrong.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from aioredlock2._core.ballot import Ballot
from aioredlock2._runtime import Runtime

__all__ = [
    "ABSENT",
    "NON_LOCK",
    "Node",
    "NodeHost",
    "NodeState",
    "NodeStatus",
    "Request",
    "Sighting",
    "Verb",
]

ABSENT = "no key there any more"
"""Cause of a denied revoke: told from a foreign owner where somebody reads the report."""
NON_LOCK = "the key holds a non-lock value"
"""Cause of a denied vote where something else than a lock lies under the key."""


class Verb(enum.IntEnum):
    """What a node can be asked.

    The first four are never sent to a node that is behind, the first three not to one in its guard.
    """

    GRANT = 0
    GRANT_FENCED = 1
    CONFIRM = 2
    RENEW = 3
    REVOKE = 4
    INSPECT = 5


class Request:
    """One question, the same for all nodes of a round."""

    __slots__ = (
        "ballot",
        "data",
        "fence",
        "form",
        "gap",
        "key",
        "token",
        "ttl_ms",
        "until",
        "verb",
    )

    def __init__(self, verb: Verb, key: bytes, token: bytes = b"", ttl_ms: int = 0) -> None:
        self.ballot: Ballot | None = None
        """Where the answers are counted, if anybody waits for them."""
        self.verb = verb
        self.key = key
        self.token = token
        self.ttl_ms = ttl_ms
        """For a grant or renewal what to set; for a revoke how long the key can live at most."""
        self.until = 0.0
        """For a revoke that could not be sent: when the key has expired anyway. For all that sets a key:
        when the lease ends that it could be for, after which nothing is sent for it."""
        self.fence = 0
        """For a fenced grant what the counter begins with where there is none; for a confirmation what
        it must reach."""
        self.gap = 0
        """For a confirmation by how much the node's grant counter is below `fence`."""
        self.form: object = None
        self.data = b""
        """The bytes made first, and the form they are in: nodes that speak one dialect share them."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an inspection found on one node (the `cause` of its vote)."""

    token: bytes = field(repr=False)
    remaining_ms: int
    """Milliseconds the key has left; -1 if it has no ttl, which is none of our doing."""

    @property
    def remaining(self) -> float:
        """Seconds the key has left, infinite if it has no ttl."""
        return self.remaining_ms / 1000 if self.remaining_ms >= 0 else math.inf


class NodeState(enum.Enum):
    """Whether a node votes."""

    CONNECTING = "connecting"
    """Not reached yet, first dial under way or not even begun."""
    UP = "up"
    GUARDED = "guarded"
    """Connected, but so young that it may have forgotten a lock: it grants none yet."""
    DOWN = "down"
    """Not connected, or connected to something that must not vote; see `cause`."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as seen by this client, now."""

    name: str
    state: NodeState
    cause: str = ""
    """Why it is not up; empty if it is."""
    server: str = ""
    """Kind and version, like "valkey 9.1.2"; empty before the first contact."""
    commands: tuple[str, str] | None = None
    """The commands in use here to revoke and to renew; None while not connected."""
    guard_left: float = 0.0
    """Seconds until a guarded node votes."""


class NodeHost(Protocol):
    """What a node may ask of the client that owns it."""

    runtime: Runtime

    def guard_period(self) -> float | None:
        """Seconds a restarted node stays out; None if the restart guard is off."""

    def redial_cap(self) -> float:
        """The longest pause between dials, in seconds, as urgent as things are now."""

    def claim(self, node: Node, identity: str) -> str | None:
        """Register the server behind `node`; the name of the node that has it already, or None."""

    def changed(self, node: Node) -> None:
        """The node's status is another one."""


@runtime_checkable
class Node(Protocol):
    """One voter; see the head of this module for the contract."""

    name: str
    """For errors, logs and status; no credentials in it."""
    address: tuple[object, ...]
    """Two nodes with equal addresses are one server."""

    def open(self, host: NodeHost, index: int) -> None:
        """Start to connect and keep connected, in the running loop; votes by `index`. Never raises."""

    def ask(self, request: Request) -> None:
        """Put one request on its way; the answer goes to its ballot."""

    def missed(self) -> None:
        """A round's deadline has passed without this node's answer."""

    def hurry(self) -> None:
        """Somebody waits for this node: dial soon if it is not connected."""

    def regard(self) -> None:
        """The guard period has changed: judge again whether this node votes."""

    @property
    def status(self) -> NodeStatus:
        """How it stands now."""

    def drop(self) -> None:
        """Let go of everything at once, also when the loop it was opened in is closed."""
