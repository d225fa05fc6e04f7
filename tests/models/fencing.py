"""Fences that grow: three nodes, two clients that lock once each, and no assumption about time at all.

A lock key may vanish anywhere at any moment (ttl, release, a clock that jumps: it is all one), and every
message may be late, overtaken or never arrive. Other clients come in as noise on the counters. What must
be so, of clients that have got their fence:

    unique      no two fences are equal
    in order    a client that asked after another had its fence gets a larger one
    holding     while the key is still its own on a quorum of the nodes that count for its fence, nobody
                has a fence that isn't smaller

The rule "real" is that of the core (`fence.py`); the others are the naive ones, there to be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aioredlock2._core.ballot import quorum_of
from aioredlock2._core.fence import candidate
from tests.models.explorer import Label, replaced

__all__ = ["Fencing"]

NODES = range(3)
QUORUM = quorum_of(len(NODES))
CLIENTS = (0, 1)
IDLE, ASKING, CONFIRMING, DONE = range(4)
FREE = -1
UNHEARD, REFUSED = -1, -2
LARGEST, ANYWHERE, WHERE_MINE, REAL = "largest", "anywhere", "where mine", "real"


class Link(NamedTuple):
    """What is between one client and one node."""

    answer: int = UNHEARD
    """What the node said to the grant: its counter, or that it refused."""
    known: int = 0
    """1 once the client knows that."""
    confirms: tuple[tuple[int, int], ...] = ()
    """Requests to confirm that are under way: the fence, and the gap to the node's grant counter."""
    confirmed: int = 0
    """The fence that the node has confirmed last."""


class Node(NamedTuple):
    """One server."""

    owner: int
    counter: int
    links: tuple[Link, Link]


class Client(NamedTuple):
    """One contender."""

    mode: int = IDLE
    fence: int = 0
    after: int = 0
    """1 if the other one had its fence before this one asked."""
    second: int = 0
    """1 if the other one had asked before."""


class State(NamedTuple):
    """Everything at one moment."""

    clients: tuple[Client, Client]
    nodes: tuple[Node, ...]
    noise: int
    wipes: int


Step = tuple[Label, State]


@dataclass(frozen=True)
class Fencing:
    """The model."""

    rule: str = REAL
    counters: tuple[tuple[int, ...], ...] = ((0, 0, 3), (0, 1, 3))
    """What the counters of the nodes may be at the start."""
    plain: bool = False
    """The encoding without scripts: every grant raises the counter and every confirmation adds the gap,
    refused or not. Otherwise only a grant raises it, and a confirmation sets the larger of the two."""
    noise: int = 0
    """How often other clients may raise a counter."""
    wipes: int = 0
    """How often a node may forget key and counter."""
    seeds: tuple[int, int] = (0, 0)
    """What a counter begins with where there is none: the clock of who asks first, and of the other."""
    order_only: bool = False
    """Look at the order of those who asked one after the other, and at nothing else."""

    def starts(self) -> Iterable[State]:
        for counters in self.counters:
            nodes = tuple(Node(FREE, counter, (Link(), Link())) for counter in counters)
            yield State((Client(), Client()), nodes, self.noise, self.wipes)

    def canonical(self, state: State) -> State:
        return State(state.clients, tuple(sorted(state.nodes)), state.noise, state.wipes)

    def wrong(self, state: State) -> str:
        one, other = state.clients
        if one.mode != DONE or other.mode != DONE:
            return ""
        for me, (client, rival) in enumerate([(one, other), (other, one)]):
            fences = f"fences {rival.fence} and {client.fence}"
            if client.after and rival.fence >= client.fence:
                return f"{fences}, in the order of asking"
            if self.order_only:
                continue
            if rival.fence == client.fence:
                return f"{fences}: not unique"
            if rival.fence > client.fence and self._owns(state, me):
                return f"{fences}, and the second still holds"
        return ""

    def _owns(self, state: State, me: int) -> bool:
        """Whether the client has its key on a quorum of the nodes that count for its fence."""
        fence = state.clients[me].fence
        return QUORUM <= sum(
            node.owner == me and self._counts(node.links[me], fence) for node in state.nodes
        )

    def _counts(self, link: Link, fence: int) -> bool:
        """Whether a node counts for `fence`."""
        answer, known, _, confirmed = link
        if self.rule == LARGEST:
            return known == 1
        if confirmed == fence:
            return self.rule != REAL or (known == 1 and answer <= fence)
        return known == 1 and answer == fence

    # What can happen.

    def steps(self, state: State) -> Iterator[Step]:
        for me in CLIENTS:
            yield from self._decisions(state, me)
        for at in NODES:
            node = state.nodes[at]
            if at and node == state.nodes[at - 1]:
                continue  # what can happen here leads to the same
            for me in CLIENTS:
                yield from self._events(state, me, at)
            if node.owner != FREE:
                yield ("the key on node {} is gone", at), _put(state, at, node._replace(owner=FREE))
            if state.noise and (self.plain or node.owner == FREE):
                raised = _put(state, at, node._replace(counter=node.counter + 1))
                yield ("others come and go on node {}", at), raised._replace(noise=state.noise - 1)
            if state.wipes:
                wiped = _put(state, at, Node(FREE, 0, node.links))
                yield ("node {} forgets everything", at), wiped._replace(wipes=state.wipes - 1)

    def _decisions(self, state: State, me: int) -> Iterator[Step]:
        mode, fence, *_ = state.clients[me]
        if mode == IDLE:
            rival = state.clients[1 - me].mode
            client = Client(ASKING, 0, int(rival == DONE), int(rival != IDLE))
            yield (
                ("client {} asks", me),
                state._replace(clients=replaced(state.clients, me, client)),
            )
        elif mode == ASKING:
            known = _known(state, me)
            if len(known) >= QUORUM:
                yield (
                    ("client {} knows a quorum", me),
                    self._pick(state, me, candidate(known).fence),
                )
        elif mode == CONFIRMING and self._is_settled(state, me, fence):
            client = state.clients[me]._replace(mode=DONE)
            done = state._replace(clients=replaced(state.clients, me, client))
            yield ("client {} HAS fence {}", me, fence), done

    def _is_settled(self, state: State, me: int, fence: int) -> bool:
        return sum(self._counts(node.links[me], fence) for node in state.nodes) >= QUORUM

    def _pick(self, state: State, me: int, fence: int) -> State:
        """`fence` is the one to settle: whoever is behind is asked to confirm it."""
        if self._is_settled(state, me, fence):
            client = state.clients[me]._replace(mode=CONFIRMING, fence=fence)
            return state._replace(clients=replaced(state.clients, me, client))
        behind = candidate(_known(state, me)).behind
        nodes = list(state.nodes)
        for at, node in enumerate(nodes):
            link = node.links[me]
            asked = at in behind if self.rule == REAL else link.answer != fence
            if asked and link.confirmed != fence and not any(f == fence for f, _ in link.confirms):
                confirms = (*link.confirms, (fence, behind.get(at, 0)))
                nodes[at] = node._replace(
                    links=replaced(node.links, me, link._replace(confirms=confirms))
                )
        client = state.clients[me]._replace(mode=CONFIRMING, fence=fence)
        return state._replace(clients=replaced(state.clients, me, client), nodes=tuple(nodes))

    # What a node does, and what a client hears of it.

    def _events(self, state: State, me: int, at: int) -> Iterator[Step]:
        client, node = state.clients[me], state.nodes[at]
        link = node.links[me]
        if client.mode != IDLE and link.answer == UNHEARD:
            yield self._grant(state, me, at)
        if link.answer >= 0 and not link.known:
            yield from self._learn(state, me, at)
        for message in link.confirms:
            yield self._confirm(state, me, at, message)

    def _grant(self, state: State, me: int, at: int) -> Step:
        owner, counter, links = state.nodes[at]
        raised = max(counter + 1, self.seeds[state.clients[me].second])
        if owner == FREE:
            label = ("node {} grants client {}, its counter is {}", at, me, raised)
            links = replaced(links, me, Link(raised))
            return label, _put(state, at, Node(me, raised, links))
        links = replaced(links, me, Link(REFUSED))
        node = Node(owner, raised if self.plain else counter, links)
        return ("node {} refuses client {}", at, me), _put(state, at, node)

    def _learn(self, state: State, me: int, at: int) -> Iterator[Step]:
        client, node = state.clients[me], state.nodes[at]
        link = node.links[me]._replace(known=1)
        knowing = _put(state, at, node._replace(links=replaced(node.links, me, link)))
        label = ("client {} hears {} from node {}", me, link.answer, at)
        if client.mode == ASKING:
            yield label, knowing
        elif client.mode == CONFIRMING and self.rule == REAL:
            yield label, self._pick(knowing, me, candidate(_known(knowing, me)).fence)

    def _confirm(self, state: State, me: int, at: int, message: tuple[int, int]) -> Step:
        fence, gap = message
        owner, counter, links = state.nodes[at]
        confirms = tuple(other for other in links[me].confirms if other != message)
        link = links[me]._replace(confirms=confirms)
        told = owner == me or self.rule == ANYWHERE
        if told:
            link = link._replace(confirmed=fence)
        if self.plain:
            counter += gap  # in the same transaction, whosever the key is
        elif told:
            counter = max(counter, fence)
        label = ("node {} {} {} for client {}", at, "confirms" if told else "denies", fence, me)
        return label, _put(state, at, Node(owner, counter, replaced(links, me, link)))


def _known(state: State, me: int) -> dict[int, int]:
    """The grant counters that the client knows, by node."""
    links = [node.links[me] for node in state.nodes]
    return {at: link.answer for at, link in enumerate(links) if link.known}


def _put(state: State, at: int, node: Node) -> State:
    return State(state.clients, replaced(state.nodes, at, node), state.noise, state.wipes)
