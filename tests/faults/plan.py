"""Which faults come when: drawn from a seed, before anything runs.

Whatever the claim of the library rests on must stand, or an overlap would prove nothing. So never more
nodes are broken than the quorum can spare: in a fault, or back and not whole yet. (Now and then all
are restarted in turn: nobody can lock then, but nothing that is locked may be locked again.) A fault
that makes a node forget behind its clients' backs comes alone, and only when all nodes have had the
time to learn every lease: a node that was away knows nothing of those granted meanwhile.

`beyond` drops all that on purpose: any number of nodes at once, most of all those that forget.

The workers stand on two sides, with a relay each before every node: the network may fail for one side
only, so that the two see different nodes, in a different order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from aioredlock2._demo.plan import guard_seconds, spare

__all__ = [
    "ALL_SIDES",
    "CLOCK_JUMP_S",
    "GUARD_S",
    "IN_TURN",
    "NODE_FAULTS",
    "SETTLE_S",
    "SIDES",
    "TTL_S",
    "WORKER_FAULTS",
    "Fault",
    "Kind",
    "Ledger",
    "draw",
]

TTL_S = 1.5
"""The longest ttl that workers ask for."""
SIDES = 2
"""Worker n stands on side n % SIDES."""
ALL_SIDES = tuple(range(SIDES))
SETTLE_S = 2 * TTL_S
"""In which every lease is renewed everywhere, or over."""
GUARD_S = guard_seconds(TTL_S)
"""A restarted node votes again by then."""
RECONNECT_S = 1.2
"""A node that can be reached again votes by then: idle clients redial once a second."""
CLOCK_JUMP_S = 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    """How a fault behaves in time."""

    seconds: tuple[float, float]
    after: float = RECONNECT_S
    """How long its target is not whole when it is over."""
    forgets: bool = False
    """Keys vanish, and no client can know."""
    empties: bool = False
    """Keys vanish, and every client can know: safe as long as such a node doesn't vote for a ttl."""
    network: bool = False
    """It may hit one side alone."""


IN_TURN = "restarted in turn"
"""All nodes, one soon after the other: nobody may lock then, and what was locked stays so."""
IN_TURN_SHARE = 0.06
IN_TURN_PAUSE_S = (0.1, 0.5)

NODE_FAULTS = {
    "frozen": Kind((0.2, 3.0)),
    "killed, back empty": Kind((0.1, 2.0), GUARD_S, empties=True),
    IN_TURN: Kind((0.0, 0.3), GUARD_S, empties=True),
    "killed, back with its data": Kind((0.1, 2.0), GUARD_S),
    "late": Kind((1.0, 4.0), network=True),
    "cut off": Kind((0.3, 3.0), network=True),
    "half-open": Kind((0.3, 4.0), network=True),
    "black hole": Kind((0.3, 4.0), network=True),
    "dripping": Kind((1.0, 4.0), network=True),
    "cut in mid-reply": Kind((0.5, 3.0), network=True),
    "refusing": Kind((0.2, 3.0), network=True),
    "hanging up": Kind((0.2, 3.0), network=True),
    "clients killed": Kind((0.2, 2.0)),
    "paused": Kind((0.2, 3.0)),
    "writes paused": Kind((0.2, 3.0)),
    "scripts flushed": Kind((0.2, 3.0)),
    "out of memory": Kind((0.5, 4.0)),
    "password changed": Kind((0.5, 3.0)),
    "right withdrawn": Kind((0.5, 3.0)),
    "user deleted": Kind((0.5, 3.0)),
    "in a slow script": Kind((0.2, 2.0)),
    "a replica": Kind((1.0, 4.0), GUARD_S, forgets=True),
    "emptied": Kind((0.1, 0.2), forgets=True),
    "evicting": Kind((0.5, 2.0), forgets=True),
    "clock ahead": Kind((0.5, 4.0), CLOCK_JUMP_S + TTL_S, forgets=True),
    "clock behind": Kind((0.5, 4.0), forgets=True),
}
WORKER_FAULTS = {
    "frozen": Kind((0.1, 3.0)),
    "killed": Kind((0.0, 0.5)),
    "blocked": Kind((0.1, 2.5)),
    "cancelled": Kind((0.3, 2.0)),
    "forked": Kind((0.1, 0.2)),
}
BEYOND = ("killed, back empty", "emptied", "evicting", "clock ahead")
"""Enough of them at once let two holders in."""
BEYOND_SHARE = 0.4
NODE_PAUSE_S = 0.5
WORKER_PAUSE_S = 2.0
FORGETS_SHARE = 0.05
"""Rare, because such a fault needs all nodes for itself, and long before and after it."""
KIND_SHARE = 0.7
"""Each chapter leaves some kinds out: what one fault covers up, its absence shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, for one target."""

    at: float
    """Seconds since the chapter's start."""
    seconds: float
    what: str
    """A name of `NODE_FAULTS` or `WORKER_FAULTS`."""
    node: int | None = None
    sides: tuple[int, ...] = ALL_SIDES
    """Who it is a fault for, if it is a node's."""
    worker: int | None = None
    seed: int
    """For whatever else is to be drawn about it."""

    @property
    def kind(self) -> Kind:
        """How it behaves in time."""
        return (WORKER_FAULTS if self.node is None else NODE_FAULTS)[self.what]

    @property
    def whole_at(self) -> float:
        """When its target is whole again, by plan."""
        return self.at + self.seconds + self.kind.after

    @property
    def target(self) -> str:
        """For people: "node 2" or "worker 1"; both count from 1."""
        if self.node is not None:
            return f"node {self.node + 1}"
        return f"worker {(self.worker or 0) + 1}"


def draw(
    rng: random.Random,
    seconds: float,
    *,
    nodes: int,
    workers: int,
    beyond: bool = False,
    without: Sequence[str] = (),
) -> list[Fault]:
    """The faults of one chapter, by the time they begin; `without` names what can't be done here."""
    possible = [what for what in NODE_FAULTS if what not in without]
    chosen = [what for what in possible if rng.random() < KIND_SHARE] or possible
    for_nodes = _beyond(rng, seconds, nodes, chosen) if beyond else None
    for_nodes = _within(rng, seconds, nodes, chosen) if for_nodes is None else for_nodes
    return sorted(for_nodes + _for_workers(rng, seconds, workers), key=lambda fault: fault.at)


def _within(rng: random.Random, seconds: float, nodes: int, chosen: list[str]) -> list[Fault]:
    """Faults of nodes, never more at a time on any side than can be spared."""
    faults: list[Fault] = []
    ledger = Ledger(nodes)
    at = 0.0
    while (at := at + rng.expovariate(1 / NODE_PAUSE_S)) < seconds:
        what = _any(rng, chosen)
        kind = NODE_FAULTS[what]
        if what == IN_TURN:
            at = _in_turn(rng, at, seconds, ledger, faults)
            continue
        sides = rng.choice([ALL_SIDES, *zip(ALL_SIDES)]) if kind.network else ALL_SIDES
        at = max(at, ledger.free_at(what, sides))
        node = rng.choice(ledger.whole(at, sides))
        fault = _drawn(rng, at, what, kind, node=node, sides=sides)
        if fault.whole_at <= seconds:
            faults.append(fault)
            ledger.book(fault, at + fault.seconds)
    return faults


def _in_turn(
    rng: random.Random, at: float, seconds: float, ledger: Ledger, faults: list[Fault]
) -> float:
    """Restart all nodes that are whole; returns when the last of them begins."""
    at = max(at, ledger.settled_at)
    nodes = ledger.whole(at, ALL_SIDES)
    rng.shuffle(nodes)
    for node in nodes:
        at += rng.uniform(*IN_TURN_PAUSE_S)
        fault = _drawn(rng, at, IN_TURN, NODE_FAULTS[IN_TURN], node=node)
        if fault.whole_at <= seconds:
            faults.append(fault)
            ledger.book(fault, at + fault.seconds)
    return at


class Ledger:
    """Which nodes are whole when, for each side; the rule of what may be broken besides."""

    def __init__(self, nodes: int) -> None:
        self._nodes = range(nodes)
        self._spare = spare(nodes)
        self._whole_at = {(side, node): 0.0 for side in ALL_SIDES for node in self._nodes}
        self.settled_at = 0.0
        """When every node knows every lease again, after a fault that forgets."""

    def book(self, fault: Fault, ends_at: float) -> None:
        """The node is broken until `ends_at`, and not whole for a while after that."""
        assert fault.node is not None
        whole_at = ends_at + fault.kind.after
        for side in fault.sides:
            self._whole_at[side, fault.node] = whole_at
        if fault.kind.forgets:
            self.settled_at = whole_at + SETTLE_S

    def whole(self, at: float, sides: Sequence[int]) -> list[int]:
        """The nodes that are whole at a time, for all these sides."""
        return [
            node for node in self._nodes if all(self._whole_at[side, node] <= at for side in sides)
        ]

    def free_at(self, what: str, sides: Sequence[int]) -> float:
        """When this fault may begin, for some node."""
        kind = NODE_FAULTS[what]
        if what == IN_TURN:
            return self.settled_at  # no matter how many others are broken
        if kind.forgets:
            return max(self.settled_at, max(self._whole_at.values()) + SETTLE_S)
        times = [self.settled_at]
        for side in sides:
            ends = sorted(self._whole_at[side, node] for node in self._nodes)
            times.append(ends[-self._spare])
        return max(times)

    def allows(self, fault: Fault, at: float) -> bool:
        """Whether this fault may begin at this time."""
        free = self.free_at(fault.what, fault.sides) <= at
        return free and fault.node in self.whole(at, fault.sides)


def _any(rng: random.Random, chosen: list[str]) -> str:
    share = rng.random()
    if share < IN_TURN_SHARE and IN_TURN in chosen:
        return IN_TURN
    forgets = share > 1 - FORGETS_SHARE
    return rng.choice([what for what in chosen if NODE_FAULTS[what].forgets == forgets] or chosen)


def _beyond(rng: random.Random, seconds: float, nodes: int, chosen: list[str]) -> list[Fault]:
    """Faults of any number of nodes, some of them at the same instant."""
    faults: list[Fault] = []
    whole_at = [0.0] * nodes
    at = 0.0
    while (at := at + rng.expovariate(1 / NODE_PAUSE_S)) < seconds:
        forgetful = [what for what in BEYOND if what in chosen]
        many = bool(forgetful) and rng.random() < BEYOND_SHARE
        what = rng.choice(forgetful if many else chosen)
        free = [index for index in range(nodes) if whole_at[index] <= at]
        count = rng.randint(nodes // 2 + 1, nodes) if many else 1
        for node in rng.sample(free, min(count, len(free))):
            fault = _drawn(rng, at, what, NODE_FAULTS[what], node=node)
            if fault.whole_at <= seconds:
                faults.append(fault)
                whole_at[node] = at + fault.seconds + RECONNECT_S
    return faults


def _for_workers(rng: random.Random, seconds: float, workers: int) -> list[Fault]:
    faults: list[Fault] = []
    free_at = [0.0] * workers
    at = 0.0
    while (at := at + rng.expovariate(1 / WORKER_PAUSE_S)) < seconds:
        what = rng.choice(list(WORKER_FAULTS))
        free = [index for index in range(workers) if free_at[index] <= at]
        if not free:
            continue
        worker = rng.choice(free)
        fault = _drawn(rng, at, what, WORKER_FAULTS[what], worker=worker)
        if fault.whole_at <= seconds:
            faults.append(fault)
            free_at[worker] = fault.whole_at
    return faults


def _drawn(
    rng: random.Random,
    at: float,
    what: str,
    kind: Kind,
    *,
    node: int | None = None,
    sides: tuple[int, ...] = ALL_SIDES,
    worker: int | None = None,
) -> Fault:
    return Fault(
        at=at,
        seconds=rng.uniform(*kind.seconds),
        what=what,
        node=node,
        sides=sides,
        worker=worker,
        seed=rng.randrange(2**32),
    )
