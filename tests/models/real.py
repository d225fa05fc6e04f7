"""The real client against model nodes, to exhaustion: two clients, three nodes, one lock each.

Not the rules retold: engine, watchdog, attempts, leases as they are (`automaton.py`), against nodes that
keep a key. A request and its answer are under way separately, in order, perhaps for ever; a node may
restart with an empty memory, and is then in its guard for one ttl. Time goes on in ticks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aioredlock2._node import Verb
from aioredlock2.outcomes import Vote
from tests.models.automaton import NODES, TTL, Automaton, Input, Sent
from tests.models.explorer import Label, replaced

__all__ = ["Real"]

CLIENTS = (0, 1)
FREE = -1
GRANT, RENEW, REVOKE = int(Verb.GRANT), int(Verb.RENEW), int(Verb.REVOKE)


class Node(NamedTuple):
    """One server, and what is under way to it and from it, by client."""

    owner: int = FREE
    left: int = 0
    guard: int = 0
    """Ticks until it may grant again."""
    there: tuple[tuple[tuple[int, int], ...], ...] = ((), ())
    """Verb and token."""
    back: tuple[tuple[int, ...], ...] = ((), ())
    """1 for yes, 0 for no."""


class State(NamedTuple):
    """Everything at one moment; of a client the number of its state."""

    clients: tuple[int, int]
    nodes: tuple[Node, ...]
    restarts: int


Step = tuple[Label, State]


@dataclass
class Real:
    """The model."""

    calls: tuple[frozenset[str], frozenset[str]] = (
        frozenset({"acquire", "release"}),
        frozenset({"acquire", "release"}),
    )
    """What the user of each client calls, once each, as soon as it can be called or later."""
    prompt: bool = True
    """An answer is heard as soon as the node has acted; otherwise it may be under way for ever."""
    restarts: int = 0
    guard: int = TTL

    @functools.cached_property
    def clients(self) -> tuple[Automaton, Automaton]:
        """Both, as far as they are known."""
        return Automaton(0), Automaton(1)

    def starts(self) -> Iterable[State]:
        one, other = (client.start for client in self.clients)
        yield State((one, other), (Node(),) * len(NODES), self.restarts)

    def canonical(self, state: State) -> State:
        return state  # the numbers of a client's states say too little to reorder its nodes

    def wrong(self, state: State) -> str:
        seen = [client.outcomes[at] for client, at in zip(self.clients, state.clients, strict=True)]
        if seen[0].holds and seen[1].holds:
            return "two valid leases at once"
        if seen[0].at_rest and seen[1].at_rest:
            for node in state.nodes:
                if node.owner != FREE and not any(node.there):
                    return "everything is given back, and a key is left"
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        yield ("a tick",), self._tick(state)
        for me in CLIENTS:
            outcome = self.clients[me].outcomes[state.clients[me]]
            for call in outcome.may:
                if call in self.calls[me]:
                    yield ("client {} calls {}", me, call), self._told(state, me, (call,))
        for at, node in enumerate(state.nodes):
            for me in CLIENTS:
                if node.there[me]:
                    label, acted = self._act(state, me, at)
                    yield (label, self._hear(acted, me, at)[1] if self.prompt else acted)
                if node.back[me]:
                    yield self._hear(state, me, at)
            if state.restarts:
                yield ("node {} restarts empty", at), self._restart(state, at)

    def _told(self, state: State, me: int, what: Input) -> State:
        """The client is told something, and what it sends is under way."""
        following, sent = self.clients[me].step(state.clients[me], what)
        nodes = state.nodes
        for at, verb, token in sent:
            nodes = _posted(nodes, me, (at, verb, token))
        return State(replaced(state.clients, me, following), nodes, state.restarts)

    def _tick(self, state: State) -> State:
        nodes = tuple(
            node._replace(
                owner=node.owner if node.left > 1 else FREE,
                left=max(node.left - 1, 0),
                guard=max(node.guard - 1, 0),
            )
            for node in state.nodes
        )
        voting = [at for at in NODES if state.nodes[at].guard == 1]
        state = State(state.clients, nodes, state.restarts)
        for me in CLIENTS:
            state = self._told(state, me, ("tick",))
            for at in voting:
                state = self._told(state, me, ("guard over", at))
        return state

    def _restart(self, state: State, at: int) -> State:
        """The process is gone, with all that was under way to it."""
        nodes = replaced(state.nodes, at, Node(guard=self.guard))
        state = State(state.clients, nodes, state.restarts - 1)
        for me in CLIENTS:
            state = self._told(state, me, ("restart", at))
            if not self.guard:
                state = self._told(state, me, ("guard over", at))
        return state

    def _act(self, state: State, me: int, at: int) -> Step:
        """A node does what it was asked first, and its answer is under way."""
        node = state.nodes[at]
        (verb, number), *rest = node.there[me]
        token = 10 * me + number
        mine, owner, left = node.owner == token, node.owner, node.left
        yes = mine if verb != GRANT else node.owner == FREE
        if yes:
            owner, left = (FREE, 0) if verb == REVOKE else (token, TTL)
        node = node._replace(
            owner=owner,
            left=left,
            there=replaced(node.there, me, tuple(rest)),
            back=replaced(node.back, me, (*node.back[me], int(yes))),
        )
        label = (
            "node {} has client {}'s {}: {}",
            at,
            me,
            Verb(verb).name.lower(),
            "yes" if yes else "no",
        )
        return label, state._replace(nodes=replaced(state.nodes, at, node))

    def _hear(self, state: State, me: int, at: int) -> Step:
        """A client hears the next answer."""
        node = state.nodes[at]
        yes, *rest = node.back[me]
        vote = Vote.GRANTED if yes else Vote.DENIED
        node = node._replace(back=replaced(node.back, me, tuple(rest)))
        heard = state._replace(nodes=replaced(state.nodes, at, node))
        label = ("client {} hears node {}: {}", me, at, vote.value)
        return label, self._told(heard, me, ("answer", at, vote))


def _posted(nodes: tuple[Node, ...], me: int, sent: Sent) -> tuple[Node, ...]:
    at, verb, token = sent
    node = nodes[at]
    there = replaced(node.there, me, (*node.there[me], (verb, token)))
    posted: tuple[Node, ...] = replaced(nodes, at, node._replace(there=there))
    return posted
