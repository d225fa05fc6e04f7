"""Nodes in memory that keep the contract of `aioredlock2/_node.py`, for tests in virtual time.

A `ModelServer` has the keys; a `ModelNode` is one client's connection to it. What a test can do:

    node.way = Way(there=0.01, back=0.02)          each request takes so long, each way
    node.then(Verb.GRANT, MUTE, Way(fault="OOM"))  how the next grants fare, one after the other
    node.cut(); node.restore()                     the connection breaks, and is there again
    server.freeze(); server.thaw()                 the process stops: what arrives waits
    server.put / take / wipe                       what happens to its keys behind everybody's back

`node.asked` records every request with its time. Requests of one connection take effect in order and
are answered in order, whatever their delays: what never arrives holds up all behind it, until the
connection is cut.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aioredlock2 import Redlock
from aioredlock2._core.ballot import Ballot
from aioredlock2._node import Node, NodeHost, NodeState, NodeStatus, Request, Sighting, Verb
from aioredlock2._runtime import Runtime
from aioredlock2.outcomes import Vote
from tests.support.virtual import VirtualRuntime, the_loop

__all__ = [
    "LOST",
    "MUTE",
    "Asked",
    "LoneHost",
    "ModelNode",
    "ModelServer",
    "Pipe",
    "Way",
    "client",
    "model_nodes",
    "sent",
]

# The client would load it at its first use, after the collected modules were frozen: each collection
# of garbage, one per test, would then have to look through it.
importlib.import_module("aioredlock2._nodes.redis")

ABSENT = "no key there any more"
TIMER_EARLY_S = 1e-9
"""A loop may run a timer so much before its time."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one request fares on its way to the server and back."""

    there: float = 0.0
    """Seconds until the server acts on it; infinite: it never arrives."""
    back: float = 0.0
    """Seconds from then until the answer is here; infinite: it never is."""
    fault: str = ""
    """The server does nothing and answers with this error."""


LOST = Way(there=math.inf)
MUTE = Way(back=math.inf)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as it was put to a node."""

    at: float
    """By the client's clock."""
    verb: Verb
    key: bytes
    token: bytes
    ttl_ms: int
    sent: bool
    """False if it was told by `skip`."""
    ballot: Ballot | None


class ModelServer:
    """One server: keys with a ttl, by a clock of its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._keys: dict[bytes, tuple[bytes, float]] = {}
        self.counters: dict[bytes, int] = {}
        """By lock key; unlike a server's they live as long as they are not wiped."""
        self._frozen: list[Callable[[], None]] | None = None

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """What lies under `key` and for how many seconds more."""
        stored = self._keys.get(key)
        if stored is None:
            return None
        value, until = stored
        left = until - self.clock()
        if left > 0:
            return value, left
        del self._keys[key]
        return None

    def put(self, key: bytes, value: bytes, ttl: float) -> None:
        """Set `key`, whatever was there."""
        self._keys[key] = (value, self.clock() + ttl)

    def take(self, key: bytes) -> None:
        """Delete `key`, whosever it is."""
        self._keys.pop(key, None)

    def wipe(self) -> None:
        """Forget everything, as a restart without persistence does."""
        self._keys.clear()
        self.counters.clear()

    def freeze(self) -> None:
        """Stop the process: what arrives waits."""
        if self._frozen is None:
            self._frozen = []

    def thaw(self) -> None:
        """Let it go on, with what has arrived."""
        waiting, self._frozen = self._frozen, None
        for action in waiting or ():
            action()

    def when_awake(self, action: Callable[[], None]) -> None:
        """Call `action` now, or when it thaws."""
        if self._frozen is None:
            action()
        else:
            self._frozen.append(action)

    def act_on(self, request: Request) -> tuple[Vote, object]:
        """Do what is asked; the answer."""
        stored = self.get(request.key)
        mine = stored is not None and stored[0] == request.token
        ttl = request.ttl_ms / 1000
        match request.verb:
            case Verb.GRANT if stored is None:
                self.put(request.key, request.token, ttl)
            case Verb.GRANT_FENCED:
                counter = self._count(request, 1)
                if stored is not None:
                    return Vote.DENIED, None
                self.put(request.key, request.token, ttl)
                return Vote.GRANTED, counter
            case Verb.CONFIRM:
                self._count(request, request.gap)
                if not mine:
                    return Vote.DENIED, None
                self.put(request.key, request.token, ttl)
            case Verb.RENEW if mine:
                self.put(request.key, request.token, ttl)
            case Verb.REVOKE if mine:
                self.take(request.key)
            case Verb.REVOKE:
                return Vote.DENIED, ABSENT if stored is None else "another value"
            case Verb.INSPECT if stored is not None:
                return Vote.GRANTED, Sighting(stored[0], math.ceil(stored[1] * 1000))
            case _:
                return Vote.DENIED, None
        return Vote.GRANTED, None

    def _count(self, request: Request, step: int) -> int:
        """Raise a counter, as the plain encoding does: whoever asks, and whatever comes of it."""
        counter = self.counters.get(request.key, request.fence - request.gap) + step
        self.counters[request.key] = counter
        return counter


class Pipe:
    """One direction of a connection: things come out in order, each when its time has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._things: deque[tuple[float, Callable[[], None]]] = deque()
        self._last = 0.0
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def push(self, delay: float, action: Callable[[], None]) -> None:
        if self._closed:
            return
        self._last = max(self._loop.time() + delay, self._last)
        self._things.append((self._last, action))
        self._arm()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._things.clear()

    def _arm(self) -> None:
        if self._timer is None and self._things and self._things[0][0] < math.inf:
            due_at = self._things[0][0]
            if due_at > self._loop.time():
                self._timer = self._loop.call_at(due_at, self._deliver)
            else:
                self._timer = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        while self._things and self._things[0][0] <= self._loop.time() + TIMER_EARLY_S:
            _, action = self._things.popleft()
            action()
        if not self._closed:
            self._arm()


class ModelNode:
    """One client's connection to a model server."""

    pipe: type[Pipe] = Pipe
    """What either direction is made of."""

    def __init__(self, name: str, server: ModelServer, *, dial: float = 0.0) -> None:
        self.name = name
        self.address: tuple[object, ...] = (name, id(server))
        self.server = server
        self.dial = dial
        """Seconds until the first connection stands; infinite: never."""
        self.way = Way()
        self.asked: list[Asked] = []
        self.hurried = 0
        self.regarded = 0
        self._scripted: dict[Verb, deque[Way]] = {verb: deque() for verb in Verb}
        self._reset()

    def _reset(self) -> None:
        self._host: NodeHost | None = None
        self._index = 0
        self._state = NodeState.CONNECTING
        self._cause = "not connected yet"
        self._there: Pipe | None = None
        self._back: Pipe | None = None
        self._open: dict[int, Request] = {}
        self._asked = self._catch_up_to = 0
        self._owed: dict[bytes, Request] = {}
        self._dialling: asyncio.TimerHandle | None = None

    # For the test.

    def then(self, verb: Verb, *ways: Way) -> None:
        """How the next requests of this kind fare; afterwards `way` holds again."""
        self._scripted[verb].extend(ways)

    def cut(self, cause: str = "connection lost", *, arrives: bool = False) -> None:
        """The connection breaks: no answer comes, and nothing that is on its way arrives.

        With `arrives` it does, like what lay in the old socket's buffers.
        """
        unanswered = self._hang_up(arrives=arrives)
        self._state, self._cause = NodeState.DOWN, cause
        for request in unanswered:
            if request.verb is Verb.REVOKE:
                self._owe(request)
            if request.ballot is not None:
                request.ballot.cast(self._index, Vote.FAULTED, cause)
        if self._host is not None:
            self._host.changed(self)

    def restore(self) -> None:
        """Connected again; owed deletes go out first."""
        if self._there is not None or self._host is None:
            return
        loop = asyncio.get_running_loop()
        self._there, self._back = self.pipe(loop), self.pipe(loop)
        self._state, self._cause = NodeState.UP, ""
        owed, self._owed = list(self._owed.values()), {}
        for request in owed:
            if request.until > self._now():
                self.ask(request)
        self._host.changed(self)

    def guard(self) -> None:
        """Connected, but it doesn't vote until `restore_vote`."""
        self._stand(NodeState.GUARDED, "in its restart guard")

    def restore_vote(self) -> None:
        """The guard is over."""
        self._stand(NodeState.UP, "")

    def _stand(self, state: NodeState, cause: str) -> None:
        self._state, self._cause = state, cause
        if self._host is not None:
            self._host.changed(self)

    # For the client: the contract.

    def open(self, host: NodeHost, index: int) -> None:
        """Connect, at once or after `dial` seconds."""
        self._host, self._index = host, index
        self._state, self._cause = NodeState.CONNECTING, "not connected yet"
        if self.dial <= 0:
            self.restore()
        elif self.dial < math.inf:
            self._dialling = asyncio.get_running_loop().call_later(self.dial, self.restore)

    def ask(self, request: Request) -> None:
        """Put one request on its way."""
        why = self._why_not(request.verb)
        self.asked.append(
            Asked(
                self._now(),
                request.verb,
                request.key,
                request.token,
                request.ttl_ms,
                why is None,
                request.ballot,
            )
        )
        there = self._there
        if why is not None or there is None:
            if there is None and request.verb is Verb.REVOKE:
                self._owe(request)
            if request.ballot is not None and why is not None:
                request.ballot.skip(self._index, *why)
            return
        scripted = self._scripted[request.verb]
        way = scripted.popleft() if scripted else self.way
        number = self._asked
        self._asked += 1
        self._open[number] = request
        back = self._back

        def act() -> None:
            answer = (Vote.FAULTED, way.fault) if way.fault else self.server.act_on(request)
            if back is not None:
                back.push(way.back, lambda: self._answer(number, *answer))

        there.push(way.there, lambda: self.server.when_awake(act))

    def _why_not(self, verb: Verb) -> tuple[Vote, str] | None:
        """Why a request isn't sent now, and the vote that stands for it."""
        if self._there is None:
            return Vote.FAULTED, self._cause
        if verb < Verb.RENEW and self._state is not NodeState.UP:
            return Vote.FAULTED, self._cause
        if verb <= Verb.RENEW and next(iter(self._open), self._asked) < self._catch_up_to:
            return Vote.MISSING, "still owes earlier answers"
        return None

    def _answer(self, number: int, vote: Vote, cause: object) -> None:
        ballot = self._open.pop(number).ballot
        if ballot is not None:
            ballot.cast(self._index, vote, cause)

    def missed(self) -> None:
        """A round's deadline has passed without this node's answer."""
        self._catch_up_to = self._asked

    def hurry(self) -> None:
        """Somebody waits for this node."""
        self.hurried += 1

    def regard(self) -> None:
        """The guard period has changed."""
        self.regarded += 1

    @property
    def status(self) -> NodeStatus:
        """How it stands now."""
        return NodeStatus(self.name, self._state, self._cause)

    @property
    def idle(self) -> bool:
        """True if no answer is outstanding."""
        return not self._open

    def drop(self) -> None:
        """Let go of everything."""
        self._hang_up()
        self._reset()
        self._state, self._cause = NodeState.DOWN, "the client is closed"

    def _hang_up(self, *, arrives: bool = False) -> list[Request]:
        if self._dialling is not None:
            self._dialling.cancel()
        if self._there is not None and not arrives:
            self._there.close()
        if self._back is not None:
            self._back.close()
        self._there = self._back = None
        # Numbers go on: an answer of the old connection can't be taken for one of the new.
        self._catch_up_to = self._asked
        unanswered, self._open = list(self._open.values()), {}
        return unanswered

    def _owe(self, request: Request) -> None:
        if self._host is not None:
            request.until = request.until or self._now() + request.ttl_ms / 1000
            self._owed[request.token] = request

    def _now(self) -> float:
        return self._host.runtime.clock() if self._host is not None else math.nan


class LoneHost:
    """What a node asks of its client, where there is none."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def guard_period(self) -> float | None:
        return None

    def redial_cap(self) -> float:
        return 1.0

    def claim(self, node: Node, identity: str) -> str | None:
        return None

    def changed(self, node: Node) -> None:
        pass


def model_nodes(count: int = 5, **options: Any) -> list[ModelNode]:
    """Nodes n1, n2, ... with a server each, in the running virtual loop."""
    clock = the_loop().boottime
    return [ModelNode(f"n{number + 1}", ModelServer(clock), **options) for number in range(count)]


def client(nodes: Sequence[Node], runtime: Runtime | None = None, **options: Any) -> Redlock:
    """A client over model nodes, in the running virtual loop's time."""
    redlock = Redlock(nodes, **options)
    redlock._runtime = runtime or VirtualRuntime(the_loop())
    return redlock


def sent(nodes: Iterable[ModelNode], verb: Verb) -> list[list[Asked]]:
    """Per node, what it was really sent of this kind."""
    return [[asked for asked in node.asked if asked.verb is verb and asked.sent] for node in nodes]
