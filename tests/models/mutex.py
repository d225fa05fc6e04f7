"""Mutual exclusion of leases: three nodes, two clients, time in ticks, runs of any length.

All times are relative (of keys, of rounds, of validity) and capped, so the states are finitely many.
Nothing has to happen: a request may stay under way for ever, a client may decide late or never. An
answer is known as soon as the node has acted; knowing it later is deciding later. A client may decide as
soon as a quorum has granted, and what is still under way arrives afterwards, or not.

Whether a round is won, and what it is worth then, is asked of the real core. The options say what the
world may do and what the client does; those that it must not do are there to be found.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aioredlock2._core.ballot import WON, Ballot, Rule, grant_rule, renew_rule
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2.outcomes import Vote
from tests.models.explorer import Label, replaced

__all__ = ["Mutex"]

NODES = range(3)
CLIENTS = (0, 1)
IDLE, ASKING, HOLDING = range(3)
GRANT, RENEW, REVOKE, PLANT = range(4)
DOES = ("grants", "renews", "deletes for", "plants the key of")
FREE = 0
NOT = -1

Message = tuple[int, int, int]
"""A request under way: verb, token, and which round or extension of that token it belongs to."""


class Link(NamedTuple):
    """What is between one client and one node."""

    under_way: tuple[Message, ...] = ()
    vote: int = 0
    """1 if the node's "yes" to the client's present round is in."""


class Node(NamedTuple):
    """One server."""

    owner: int
    """The token that lies there."""
    left: int
    """Ticks until it expires."""
    age: int
    """Ticks since its start, up to the length of the guard."""
    links: tuple[Link, Link]


class Client(NamedTuple):
    """One contender."""

    mode: int
    attempts: int
    """Rounds that it may still ask for."""
    token: int
    asked: int
    """Ticks since the first byte of its present round left, or NOT."""
    validity: int
    """Ticks for which it may rely on its lease."""
    extensions: int
    """How often it may still extend."""
    overtaken: int
    """1 if somebody else got the lock since it has it."""


class State(NamedTuple):
    """Everything at one moment."""

    clients: tuple[Client, Client]
    nodes: tuple[Node, ...]
    crashes: int


Step = tuple[Label, State]


@functools.cache
def won(rule: Rule, *votes: int) -> bool:
    """Whether the real ballot takes these votes for a quorum."""
    ballot = Ballot(len(votes), rule)
    for node, vote in enumerate(votes):
        if vote:
            ballot.cast(node, Vote.GRANTED)
    return ballot.verdict is WON


@dataclass(frozen=True)
class Mutex:
    """The model."""

    ttl: int = 3
    attempts: tuple[int, int] = (1, 1)
    """How many rounds each client may ask for."""
    extensions: int = 0
    """How often the first client may extend a lease."""
    fifo: bool = True
    """False: what is under way may overtake (reconnects, buffers of old sockets)."""
    fast: int = 0
    """A node's clock may let a key expire so many ticks early."""
    margin: int = 0
    """The client's allowance for that."""
    crashes: int = 0
    """How often a node restarts with an empty memory."""
    guard: int = 0
    """A node younger than that gives no votes."""
    # What our client does beyond that.
    guarded_confirms: bool = False
    """A node in its guard is sent no grants, and what it says to an extension counts."""
    plants: bool = False
    """After an extension that counts, the key is set again where it is missing, but not in a guard."""
    # What must not be done.
    one_token: bool = False
    """All rounds of a client have the same token."""
    from_decision: bool = False
    """Validity counts from the decision, not from the first byte."""
    plain_delete: bool = False
    """A delete doesn't look whose key it is."""
    late_extension: bool = False
    """An extension counts although the deadline that it replaces has passed."""
    recreates: bool = False
    """An extension sets the key where it is missing: safe, but for `late_extension` and in a guard."""
    plants_in_guard: bool = False

    # How it begins, and what must not be.

    def starts(self) -> Iterable[State]:
        node = Node(FREE, 0, self.guard, (Link(), Link()))
        one, other = (
            Client(IDLE, attempts, 10 * me, NOT, 0, 0, 0)
            for me, attempts in enumerate(self.attempts)
        )
        yield State((one, other), (node,) * len(NODES), self.crashes)

    def canonical(self, state: State) -> State:
        return State(state.clients, tuple(sorted(state.nodes)), state.crashes)

    def wrong(self, state: State) -> str:
        valid = [client.mode == HOLDING and client.validity > 0 for client in state.clients]
        if all(valid):
            return "two valid leases at once"
        for client, holds in zip(state.clients, valid, strict=True):
            if holds and client.overtaken:
                return "a lease that was never lost goes on after somebody else's"
        return ""

    # What can happen.

    def steps(self, state: State) -> Iterator[Step]:
        yield ("a tick",), self._tick(state)
        for me in CLIENTS:
            yield from self._decisions(state, me)
        for at in NODES:
            if at and state.nodes[at] == state.nodes[at - 1]:
                continue  # what can happen here leads to the same
            for me in CLIENTS:
                yield from self._arrivals(state, me, at)
            if state.crashes:
                yield ("node {} restarts empty", at), self._crash(state, at)

    def _tick(self, state: State) -> State:
        nodes = []
        for owner, left, age, links in state.nodes:
            lives = left > 1
            nodes.append(
                Node(owner if lives else FREE, left - lives if lives else 0, self._aged(age), links)
            )
        one, other = (
            client._replace(
                asked=self._older(client), validity=client.validity - (client.validity > 0)
            )
            for client in state.clients
        )
        return State((one, other), tuple(nodes), state.crashes)

    def _aged(self, age: int) -> int:
        return min(age + 1, self.guard)

    def _older(self, client: Client) -> int:
        if client.asked == NOT or (self.from_decision and client.mode == ASKING):
            return client.asked
        return min(client.asked + 1, self.ttl)

    def _crash(self, state: State, at: int) -> State:
        links = state.nodes[at].links
        if self.guarded_confirms:  # what was under way was so to the process that is gone
            links = (Link((), links[0].vote), Link((), links[1].vote))
        node = Node(FREE, 0, 0, links)
        return State(state.clients, replaced(state.nodes, at, node), state.crashes - 1)

    # What a client may do.

    def _decisions(self, state: State, me: int) -> Iterator[Step]:
        client = state.clients[me]
        worth = int(valid_until(-client.asked, _terms(self.ttl, self.margin)))
        """What its present round is worth now."""
        if client.mode == IDLE:
            if client.attempts:
                yield ("client {} asks", me), self._ask(state, me)
            return
        yield ("client {} gives the key back", me), self._give_back(state, me)
        if client.mode == ASKING:
            if worth > 0 and _quorum(grant_rule, state, me):
                yield ("client {} HOLDS, for {} ticks", me, worth), self._hold(state, me, worth)
        elif client.validity or self.late_extension:
            if client.asked == NOT:
                if client.extensions:
                    yield ("client {} sends an extension", me), self._extend(state, me)
            elif worth > 0 and _quorum(renew_rule, state, me):
                yield ("client {} is EXTENDED, {} ticks", me, worth), self._go_on(state, me, worth)

    def _ask(self, state: State, me: int) -> State:
        client = state.clients[me]
        token = client.token if self.one_token and client.token % 10 else client.token + 1
        extensions = 0 if me else self.extensions
        asking = Client(ASKING, client.attempts - 1, token, 0, 0, extensions, 0)
        return self._post(state, me, asking, (GRANT, token, asking.attempts))

    def _give_back(self, state: State, me: int) -> State:
        client = state.clients[me]
        idle = Client(IDLE, client.attempts, client.token, NOT, 0, 0, 0)
        return self._post(state, me, idle, (REVOKE, client.token, 0))

    def _hold(self, state: State, me: int, worth: int) -> State:
        client = state.clients[me]._replace(mode=HOLDING, asked=NOT, validity=worth)
        rival = state.clients[1 - me]
        if rival.mode == HOLDING:
            rival = rival._replace(overtaken=1)
        state = State(replaced(state.clients, 1 - me, rival), state.nodes, state.crashes)
        return self._post(state, me, client, None)

    def _extend(self, state: State, me: int) -> State:
        client = state.clients[me]
        client = client._replace(asked=0, extensions=client.extensions - 1)
        return self._post(state, me, client, (RENEW, client.token, client.extensions))

    def _go_on(self, state: State, me: int, worth: int) -> State:
        client = state.clients[me]
        client = client._replace(asked=NOT, validity=max(client.validity, worth))
        return self._post(state, me, client, (PLANT, client.token, 0) if self.plants else None)

    def _post(self, state: State, me: int, client: Client, message: Message | None) -> State:
        """`client` begins a round, or ends one: no vote is in yet, and `message` is under way."""
        nodes = []
        for owner, left, age, links in state.nodes:
            under_way = links[me].under_way
            if message is not None and not self._withheld(message[0], age):
                under_way = (*under_way, message)
            nodes.append(Node(owner, left, age, replaced(links, me, Link(under_way))))
        return State(replaced(state.clients, me, client), tuple(nodes), state.crashes)

    def _withheld(self, verb: int, age: int) -> bool:
        """Whether a node of this age is not sent such a request."""
        if age >= self.guard or verb in (RENEW, REVOKE):
            return False
        return not self.plants_in_guard if verb == PLANT else self.guarded_confirms

    # What a node does.

    def _arrivals(self, state: State, me: int, at: int) -> Iterator[Step]:
        under_way, vote = state.nodes[at].links[me]
        for place in range(1 if self.fifo else len(under_way)) if under_way else ():
            message = under_way[place]
            rest = under_way[:place] + under_way[place + 1 :]
            for owner, left, acts in self._acts(state.nodes[at], message):
                counts = acts and self._counts(state.clients[me], state.nodes[at].age, message)
                links = replaced(state.nodes[at].links, me, Link(rest, 1 if counts else vote))
                node = Node(owner, left, state.nodes[at].age, links)
                label = ("node {} {} client {}", at, DOES[message[0]] if acts else "refuses", me)
                yield label, State(state.clients, replaced(state.nodes, at, node), state.crashes)

    def _acts(self, node: Node, message: Message) -> Iterator[tuple[int, int, bool]]:
        """Which token lies there then and for how long, and whether the node did what was asked."""
        verb, token, _ = message
        mine = node.owner == token
        if verb == REVOKE:
            if mine or (self.plain_delete and node.owner != FREE):
                yield FREE, 0, True
                return
        elif (mine and verb == RENEW) or (node.owner == FREE and (verb != RENEW or self.recreates)):
            for early in range(self.fast + 1):
                yield token, self.ttl - early, True
            return
        yield node.owner, node.left, False

    def _counts(self, client: Client, age: int, message: Message) -> bool:
        """Whether a yes to this is a vote for the client's present round."""
        verb, token, serial = message
        if token != client.token or client.asked == NOT:
            return False
        if verb == GRANT:
            return client.mode == ASKING and serial == client.attempts and age >= self.guard
        if verb == RENEW and client.mode == HOLDING:
            return serial == client.extensions and (age >= self.guard or self.guarded_confirms)
        return False


@functools.cache
def _terms(ttl: int, drift: int) -> LockTerms:
    return LockTerms(ttl, ttl * 1000, drift, node_timeout=0, renew_every=1, slot=0)


def _quorum(rule: Rule, state: State, me: int) -> bool:
    return won(rule, *[node.links[me].vote for node in state.nodes])
