"""One chapter: faults from a seed, then all is healed, then all rest, and nothing may be left.

Each chapter has a history of its own and is judged at its end, so that a run of any length needs no
more memory and disk than one of them.
"""

from __future__ import annotations

import math
import random
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aioredlock2._demo.clock import now
from tests.faults import node_faults
from tests.faults.arena import Arena
from tests.faults.crew import Crew
from tests.faults.history import Faulted, History, Keys, Whole
from tests.faults.plan import GUARD_S, SIDES, TTL_S, Fault, Ledger, draw

__all__ = ["AFTERMATH_S", "CHAPTER_S", "FAULTS_S", "play"]

CONVERGE_S = GUARD_S + 2.0
CANCEL_S = 1.0
"""At the end many calls are cancelled while all nodes are there: none may leave a key behind."""
CLEAN_S_MAX = 0.7
"""What was given back is deleted by then; most of it would take longer to run out."""
QUIET_S = TTL_S + 0.5
"""No key outlives its last release by more than its ttl."""
AFTERMATH_S = CONVERGE_S + CANCEL_S + QUIET_S + 3.0
"""What a chapter takes besides its faults, about."""
CHAPTER_S = 60.0
FAULTS_S = CHAPTER_S - AFTERMATH_S

THREADS = 16
LOOK_S = 0.02
DELAY_S_MAX = 3.0
"""A fault that may not begin by then is left out."""


def play(
    arena: Arena, crew: Crew, history: Path, *, seed: str, seconds: float, beyond: bool
) -> str:
    """Play one chapter, or its beginning; all that happens is in the history.

    Returns an empty string, or which workers don't come to rest.
    """
    rng = random.Random(seed)
    faults = draw(
        rng,
        FAULTS_S,
        nodes=len(arena.servers),
        workers=crew.size,
        beyond=beyond,
        without=node_faults.impossible(arena),
    )
    with History(history) as record:
        crew.work(history, rng.randrange(2**32))
        begun = [fault for fault in faults if fault.whole_at <= seconds]
        _Harm(arena, crew, record, beyond=beyond).do(begun, seconds)
        arena.mend()
        record.write(Whole(at=now()))
        time.sleep(CONVERGE_S)
        crew.cancel(CANCEL_S)
        if hung := crew.rest():
            return hung
        # Whatever came of the faults has run out by now: all else is given back cleanly.
        deadline = now() + CLEAN_S_MAX
        while (left := _lock_keys(arena)) and now() < deadline:
            time.sleep(LOOK_S)
        for event in left:
            record.write(event)
        time.sleep(QUIET_S)
        for event in _lock_keys(arena):
            record.write(event)
    return ""


def _lock_keys(arena: Arena) -> list[Keys]:
    looks = [(index, arena.lock_keys(server)) for index, server in enumerate(arena.servers)]
    return [Keys(at=now(), node=index, keys=keys) for index, keys in looks if keys]


class _Harm:
    """Makes the faults at their times, each in a thread; later where the others are not over yet.

    The plan leaves room enough for an idle machine. What was promised is kept on a busy one too.
    """

    def __init__(self, arena: Arena, crew: Crew, record: History, *, beyond: bool) -> None:
        self._arena = arena
        self._crew = crew
        self._record = record
        self._beyond = beyond
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ledger = Ledger(len(arena.servers))

    def do(self, faults: Sequence[Fault], seconds: float) -> None:
        """Return after so many seconds, when the last fault is healed."""
        began_at = now()
        with ThreadPoolExecutor(max_workers=THREADS) as threads:
            try:
                for fault in faults:
                    time.sleep(max(0.0, began_at + fault.at - now()))
                    threads.submit(self._one, fault)
                time.sleep(max(0.0, began_at + seconds - now()))
            except BaseException:
                self._over.set()
                raise

    def _one(self, fault: Fault) -> None:
        if not self._begin(fault):
            return
        at, error = now(), ""
        try:
            if fault.node is not None:
                node_faults.make(fault, self._arena, self._over)
            elif not self._crew.harm(fault, self._over):
                return
        except Exception:  # noqa: BLE001 - a fault that can't be made is a finding
            error = traceback.format_exc(limit=-4)
        until = now()
        self._record.write(
            Faulted(
                at=at,
                until=until,
                fault=fault.what,
                target=fault.target,
                side=fault.sides[0] if len(fault.sides) < SIDES else None,
                forgets=fault.kind.forgets,
                empties=fault.kind.empties,
                error=error,
            )
        )
        if fault.node is not None:
            with self._lock:
                self._ledger.book(fault, until)

    def _begin(self, fault: Fault) -> bool:
        """Wait until it may; False if that takes too long."""
        deadline = now() + DELAY_S_MAX
        while True:
            with self._lock:
                if fault.node is None:
                    return True
                if self._beyond or self._ledger.allows(fault, now()):
                    self._ledger.book(fault, math.inf)
                    return True
            if now() > deadline:
                return False
            time.sleep(LOOK_S)
