"""What is explored, and what must come out: the unsafe variants are found, the safe ones hold.

`python -m tests.models` runs all of it and tells the shortest way to each violation; the quick ones run
with the ordinary tests. A variant that ceases to be found says that the model has gone blind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.models.explorer import Findings, Model
from tests.models.fencing import ANYWHERE, LARGEST, REAL, WHERE_MINE, Fencing
from tests.models.mutex import Mutex
from tests.models.real import Real

__all__ = ["CASES", "Case"]

TWO = "two valid leases at once"
GOES_ON = "a lease that was never lost goes on after somebody else's"
RISEN = "fences"
HOLDS = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One model and what is known of it."""

    name: str
    model: Model[Any]
    finds: str = HOLDS
    """How the violation begins that must be found; empty: there is none."""
    quick: bool = False

    def agrees(self, found: Findings) -> bool:
        """Whether this is what must come out."""
        return found.wrong.startswith(self.finds) if self.finds else not found.wrong


GUARDED = Mutex(ttl=2, crashes=1, guard=2, guarded_confirms=True, extensions=1)
ACQUIRE = frozenset({"acquire"})

CASES = [
    # Rounds, early decisions, deletes.
    Case("a decision as soon as a quorum has granted", Mutex(ttl=2), quick=True),
    Case("the same with longer leases", Mutex()),
    Case("two rounds of one client, fresh tokens, in order", Mutex(ttl=2, attempts=(2, 1))),
    Case("the same, anything may overtake", Mutex(ttl=1, attempts=(2, 1), fifo=False)),
    Case(
        "H14: one token for all rounds, anything may overtake",
        Mutex(ttl=1, attempts=(2, 1), fifo=False, one_token=True),
        TWO,
    ),
    Case("one token, but in order", Mutex(ttl=2, attempts=(2, 1), one_token=True)),
    Case(
        "H03: validity counts from the decision", Mutex(ttl=2, from_decision=True), TWO, quick=True
    ),
    Case(
        "H15: a delete without comparing",
        Mutex(ttl=1, attempts=(2, 1), plain_delete=True),
        TWO,
        quick=True,
    ),
    Case("H04: fast clocks without allowance", Mutex(ttl=2, fast=1), TWO, quick=True),
    Case("fast clocks within the allowance", Mutex(fast=1, margin=1)),
    # Extensions.
    Case("an extension that beats the old deadline", Mutex(ttl=2, extensions=1)),
    Case("the same, anything may overtake", Mutex(ttl=2, extensions=1, fifo=False)),
    Case(
        "the same, and it sets missing keys", Mutex(ttl=1, extensions=1, recreates=True), quick=True
    ),
    Case(
        "it sets missing keys, anything may overtake",
        Mutex(ttl=2, extensions=1, recreates=True, fifo=False),
    ),
    Case("two extensions, keys planted behind", Mutex(ttl=2, extensions=2, plants=True)),
    Case(
        "H26: an extension after the old deadline",
        Mutex(ttl=2, extensions=1, late_extension=True),
        GOES_ON,
    ),
    Case(
        "H26: the same, and it sets missing keys",
        Mutex(ttl=1, extensions=1, late_extension=True, recreates=True),
        GOES_ON,
        quick=True,
    ),
    # Restarts.
    Case("H07: a restart without memory", Mutex(ttl=1, crashes=1), TWO, quick=True),
    Case("a guard as long as the ttl", Mutex(ttl=1, crashes=1, guard=1), quick=True),
    Case("the same with longer leases", Mutex(ttl=2, crashes=1, guard=2)),
    Case("a guard one tick too short", Mutex(ttl=2, crashes=1, guard=1), TWO, quick=True),
    Case("two restarts", Mutex(ttl=1, crashes=2, guard=1)),
    Case("two restarts, anything may overtake", Mutex(ttl=1, crashes=2, guard=1, fifo=False)),
    Case("a restart and an extension", Mutex(ttl=2, crashes=1, guard=2, extensions=1)),
    # What our client adds: a guarded node grants nothing, and confirms extensions.
    Case(
        "a guarded node confirms",
        Mutex(ttl=1, crashes=1, guard=1, guarded_confirms=True, extensions=1),
        quick=True,
    ),
    Case("the same with longer leases", GUARDED),
    Case(
        "the same, keys planted behind but not in a guard",
        Mutex(ttl=2, crashes=1, guard=2, guarded_confirms=True, extensions=2, plants=True),
    ),
    Case(
        "keys planted in a guard as well",
        Mutex(
            ttl=2,
            crashes=1,
            guard=2,
            guarded_confirms=True,
            extensions=2,
            plants=True,
            plants_in_guard=True,
        ),
        TWO,
    ),
    Case(
        "an extension sets keys in a guard, and counts them",
        Mutex(ttl=2, crashes=1, guard=2, guarded_confirms=True, extensions=1, recreates=True),
        TWO,
    ),
    Case(
        "a guarded node confirms, the guard is one tick too short",
        Mutex(ttl=2, crashes=1, guard=1, guarded_confirms=True, extensions=1),
        TWO,
    ),
    # The real client, with all its code.
    Case(
        "H07: the real client without its guard", Real((ACQUIRE, ACQUIRE), restarts=1, guard=0), TWO
    ),
    # Fences.
    Case("F1: the largest counter of a quorum", Fencing(LARGEST, ((0, 0, 3),)), RISEN, quick=True),
    Case("F2: written back to any quorum", Fencing(ANYWHERE, ((0, 1, 3),)), RISEN),
    Case(
        "F4: written back where mine, stragglers overlooked",
        Fencing(WHERE_MINE, ((0, 3, 3),)),
        RISEN,
    ),
    Case("the real rule, counters level", Fencing(REAL, ((0, 0, 0),)), quick=True),
    Case("the real rule, counters uneven", Fencing(REAL, ((0, 0, 1),))),
    Case("the real rule, counters more uneven", Fencing(REAL, ((0, 1, 3),))),
    Case("the real rule, others come and go", Fencing(REAL, ((0, 0, 1),), noise=1)),
    Case("the real rule without scripts", Fencing(REAL, ((0, 0, 1),), plain=True)),
    Case("without scripts, others come and go", Fencing(REAL, ((0, 0, 1),), plain=True, noise=1)),
    Case("clocks apart, nothing forgotten", Fencing(REAL, ((0, 3, 9),), seeds=(7, 2))),
    Case("F7: a counter is forgotten", Fencing(REAL, ((0, 0, 0),), wipes=1), RISEN),
    Case(
        "F10: a counter is forgotten, and clocks are apart",
        Fencing(REAL, ((0, 0, 0),), wipes=1, seeds=(7, 2), order_only=True),
        RISEN,
    ),
    Case(
        "H37: a counter is forgotten, the later clock says more",
        Fencing(REAL, ((0, 0, 0),), wipes=1, seeds=(3, 7), order_only=True),
    ),
]
