"""What one seed's simulation is like, drawn swarm-style: most faults off, the rest often or seldom.

A swarm of different mixes finds more than one mix of everything: some bugs only show where nothing else
is in the way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from tests.simulation.server import KINDS

__all__ = ["BREAKS", "FAULTS", "Options", "draw"]

FAULTS = (
    "freeze",
    "crash",
    "amnesia",
    "ail",
    "slow",
    "flush scripts",
    "partition",
    "reset",
    "lose",
    "delay",
    "stall",
    "hiccup",
    "suspend",
    "die",
    "close",
)
"""Faults under which every promise must hold."""
BREAKS = ("unguarded", "fast node", "flush", "step", "vm pause")
"""Assumptions that are broken on purpose, in some seeds: then overlaps are counted and explained."""
RATE_MIN, RATE_MAX = 1.0, 40.0


@dataclass(frozen=True, slots=True)
class Options:
    """One seed's draw. Times are true seconds."""

    seed: int
    seconds: float
    kinds: tuple[str, ...]
    """What each server is."""
    processes: int
    tasks: int
    names: int
    ttl: float
    retry: tuple[float, float]
    """Floor and cap of the pauses between rounds."""
    drift_factor: float
    node_timeout: float | None
    fenced: float
    """Share of the names that are fenced."""
    node_rates: tuple[float, ...]
    client_rates: tuple[float, ...]
    wall_skews: tuple[float, ...]
    delay: float
    jitter: float
    turn_s: float
    timers_first: bool
    chunked: float
    lost: float
    late: tuple[float, float, float]
    late_s: float
    cancelled: float
    """Share of calls that are cancelled somewhere."""
    held: float
    """How long a lease is held, in ttls, at most."""
    think: float
    """Pause between a task's leases, at most."""
    faults: dict[str, float]
    """Per kind that is on, how many a minute."""
    broken: frozenset[str]

    @property
    def guarded(self) -> bool:
        """Whether the restart guard is on."""
        return "unguarded" not in self.broken

    def lines(self) -> list[str]:
        """For people: one line per option."""
        return [f"  {each.name} = {getattr(self, each.name)!r}" for each in fields(self)]


def draw(seed: int, seconds: float = 60.0) -> Options:
    """The options of a seed."""
    rng = random.Random(f"options {seed}")
    nodes = rng.choice((1, 3, 3, 3, 5, 5))
    processes = rng.choice((2, 2, 2, 3, 4))
    broken: set[str] = set()
    if rng.random() < 0.2:
        broken.add(rng.choice(BREAKS))
    drift_factor = rng.choice((0.01, 0.01, 0.05))
    spread = drift_factor * 0.48
    node_rates = [1 + rng.uniform(-spread, spread) for _ in range(nodes)]
    if "fast node" in broken:
        node_rates = [rate * rng.uniform(1.1, 1.5) for rate in node_rates]
    on = [kind for kind in FAULTS if rng.random() < 0.4]
    faults = {kind: round(RATE_MIN * (RATE_MAX / RATE_MIN) ** rng.random(), 1) for kind in on}
    for kind in broken & {"flush", "step", "vm pause"}:
        faults[kind] = round(rng.uniform(5, 30), 1)
    if "unguarded" in broken:
        faults["amnesia"] = round(rng.uniform(20, 60), 1)
    lossless = rng.random() < 0.6
    delay = rng.choice((0.0001, 0.0003, 0.001))
    # Round trips fit into the shortest node timeout, 5 ms: longer ones are a fault.
    jitter = min(delay * rng.choice((0.2, 1.0, 5.0)), 0.0015 - delay)
    return Options(
        seed=seed,
        seconds=seconds,
        kinds=tuple(rng.choice(list(KINDS)) for _ in range(nodes)),
        processes=processes,
        tasks=rng.choice((1, 1, 1, 2, 3)),
        names=rng.choice((1, 1, 2, 3)),
        ttl=rng.choice((0.5, 1.0, 2.0, 4.0)),
        retry=rng.choice(((0.01, 0.1), (0.03, 0.4), (0.05, 0.6))),
        drift_factor=drift_factor,
        node_timeout=rng.choice((None, None, 0.02, 0.05)),
        fenced=rng.choice((0.0, 0.5, 1.0, 1.0)),
        node_rates=tuple(node_rates),
        client_rates=tuple(1 + rng.uniform(-spread, spread) for _ in range(processes)),
        wall_skews=tuple(0.0 if broken else rng.uniform(-0.2, 0.2) for _ in range(processes)),
        delay=delay,
        jitter=jitter,
        turn_s=rng.choice((20e-6, 50e-6, 200e-6)),
        timers_first=rng.random() < 0.4,
        chunked=rng.choice((0.0, 0.0, 0.2)),
        lost=0.0 if lossless else 10 ** rng.uniform(-4, -2),
        late=(rng.random(), rng.random(), rng.random()),
        late_s=rng.choice((0.1, 0.5, 2.0)),
        cancelled=rng.choice((0.0, 0.1, 0.4)),
        held=rng.choice((1.0, 2.5) if broken else (0.05, 0.3, 1.0, 2.5)),
        think=rng.choice((0.05, 0.2, 0.6)),
        faults=faults,
        broken=frozenset(broken),
    )
