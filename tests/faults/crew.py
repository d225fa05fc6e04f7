"""The worker processes: started, told what to do, and done harm to."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

from aioredlock2._demo.clock import now
from tests.faults.arena import Arena
from tests.faults.history import Died, History
from tests.faults.plan import Fault
from tests.support.child import Child, Finished

__all__ = ["Crew"]

REST_S_MAX = 30.0
EXPLAIN_S = 1.0


class Crew:
    """Some workers, by their number; a killed one is replaced."""

    def __init__(self, workers: int, arena: Arena, directory: Path, *, guard: bool) -> None:
        self._arena = arena
        self._directory = directory
        self._guard = "on" if guard else "off"
        self._history = History(Path("/dev/null"))
        self._orders: dict[str, Any] = {}
        self._locks = [threading.Lock() for _ in range(workers)]
        self._children = [self._start(number) for number in range(workers)]
        for child in self._children:
            assert child.line() == "ready"

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._children)

    def work(self, history: Path, seed: int) -> None:
        """Everybody works, and writes to that file."""
        self._history.close()
        self._history = History(history)
        self._orders = {"do": "work", "history": str(history), "seed": seed}
        for child in self._children:
            _tell(child, self._orders)

    def cancel(self, seconds: float) -> None:
        """All workers cancel what they do, here and there, for so long."""
        for child in self._children:
            _tell(child, {"do": "cancel", "seconds": seconds})
        time.sleep(seconds)

    def rest(self) -> str:
        """Return when nobody holds anything or asks for anything; or name those who don't end.

        What these are at is in the history as a stray error, if their loops still run.
        """
        for child in self._children:
            _tell(child, {"do": "rest"})
        hung = []
        for number, child in enumerate(self._children):
            try:
                assert child.line(REST_S_MAX) == "resting"
            except AssertionError as error:
                hung.append(f"worker {number + 1} did not come to rest: {error}")
                _tell(child, {"do": "explain"})
                time.sleep(EXPLAIN_S)
        return "; ".join(hung)

    def harm(self, fault: Fault, over: threading.Event) -> bool:
        """Make a worker's fault, wait, and heal it; False if the one before is not healed yet."""
        assert fault.worker is not None
        lock = self._locks[fault.worker]
        if not lock.acquire(blocking=False):
            return False
        try:
            self._harm(fault, fault.worker, over)
        finally:
            lock.release()
        return True

    def _harm(self, fault: Fault, worker: int, over: threading.Event) -> None:
        child = self._children[worker]
        if fault.what == "frozen":
            child.freeze()
            over.wait(fault.seconds)
            child.thaw()
        elif fault.what == "killed":
            child.send_signal(signal.SIGKILL)
            self._bury(child, expected=True)
            over.wait(fault.seconds)
            self._children[worker] = child = self._start(worker)
            assert child.line() == "ready"
            _tell(child, self._orders)
        elif fault.what == "forked":
            _tell(child, {"do": "fork"})
            over.wait(fault.seconds)
        else:
            what = {"blocked": "block", "cancelled": "cancel"}[fault.what]
            _tell(child, {"do": what, "seconds": fault.seconds})
            over.wait(fault.seconds)

    def stop(self) -> list[Finished]:
        """End all in good order; what is left of them."""
        for child in self._children:
            child.thaw()
        return [_finished(child) for child in self._children]

    def _start(self, number: int) -> Child:
        log = self._directory / f"worker-{number + 1}.log"
        return Child("tests.faults.worker", number, log, self._guard, *self._arena.urls(number))

    def _bury(self, child: Child, *, expected: bool) -> None:
        finished = child.finish()
        self._history.write(
            Died(at=now(), pid=child.pid, expected=expected, errors=finished.errors)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in self._children:
            child.stop()
        self._history.close()


def _tell(child: Child, order: dict[str, Any]) -> None:
    child.tell(json.dumps(order))


def _finished(child: Child) -> Finished:
    try:
        return child.finish()
    except subprocess.TimeoutExpired:
        return Finished(1, [], "it does not end")
