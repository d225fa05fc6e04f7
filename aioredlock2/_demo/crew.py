"""All worker processes: starts them, kills one on demand, replaces the killed, sees that all end.

A worker that dies without having been killed is a failure to be told, so it is not replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioredlock2._demo.clock import now
from aioredlock2._demo.record import Ended
from aioredlock2._demo.worker import Orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aioredlock2._demo.record import Recorder
    from aioredlock2._demo.settings import Settings

__all__ = ["Crew"]

STOP_S_MAX = 3.0
"""Workers that haven't ended by then are killed."""
LOOK_S = 0.01
LONG_S = 5.0
"""Some worker starts a long section about so often."""


@dataclass(frozen=True, slots=True)
class _Member:
    number: int
    process: subprocess.Popen[bytes]
    log: Path


class Crew:
    """The workers; *tell* is given a line for each that fails."""

    def __init__(
        self,
        *,
        urls: list[str],
        settings: Settings,
        directory: Path,
        record: Path,
        recorder: Recorder,
        tell: Callable[[str, str], None],
    ) -> None:
        self._urls = urls
        self._settings = settings
        self._directory = directory
        self._record = record
        self._recorder = recorder
        self._tell = tell
        self._members: dict[int, _Member] = {}
        self._stopping_at: float | None = None

    @property
    def size(self) -> int:
        """How many are there."""
        return len(self._members)

    def start(self) -> None:
        """Start all."""
        for number in range(1, self._settings.workers + 1):
            self._spawn(number)

    def look(self) -> None:
        """Notice those that died by themselves."""
        for member in list(self._members.values()):
            status = member.process.poll()
            if status is None:
                continue
            if self._stopping_at is not None and status in (0, -signal.SIGTERM):
                # By the signal itself: asked before it was ready to listen.
                self._bury(member, self._stopping_at if status else None)
                continue
            self._bury(member, killed_at=None)
            self._tell(_obituary(member), "bold red")

    def kill(self, pid: int) -> bool:
        """SIGKILL a worker, wait for its end, start another in its place. False if it is gone."""
        member = self._members.get(pid)
        if member is None:
            return False
        killed_at = now()
        member.process.kill()
        member.process.wait()  # a few milliseconds; what follows must be after its last breath
        self._bury(member, killed_at)
        self._spawn(member.number)
        return True

    async def stop(self) -> None:
        """Ask all to end and wait until they have. Cancelled, it kills them."""
        self._stopping_at = now()
        try:
            for member in self._members.values():
                member.process.terminate()
            deadline = now() + STOP_S_MAX
            while self._members and now() < deadline:
                await asyncio.sleep(LOOK_S)
                self.look()
        finally:
            for member in list(self._members.values()):
                killed_at = now()
                member.process.kill()
                member.process.wait()
                self._bury(member, killed_at)

    def _spawn(self, number: int) -> None:
        spread = LONG_S * self._settings.workers
        orders = Orders(
            number=number,
            urls=self._urls,
            ttl=self._settings.ttl,
            record=str(self._record),
            long_after=LONG_S * number,
            long_every=spread,
        )
        log = self._directory / f"worker-{number}.log"
        with log.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "aioredlock2._demo.worker", orders.to_argument()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the demo, which stops them in good order
            )
        self._members[process.pid] = _Member(number, process, log)

    def _bury(self, member: _Member, killed_at: float | None) -> None:
        del self._members[member.process.pid]
        if member.process.stdin is not None:
            member.process.stdin.close()
        self._recorder.write(
            Ended(at=now(), worker=member.number, pid=member.process.pid, killed_at=killed_at)
        )


def _obituary(member: _Member) -> str:
    last_line = ""
    with contextlib.suppress(OSError, IndexError):
        last_line = member.log.read_text(errors="replace").strip().splitlines()[-1]
    return f"worker {member.number} failed: {last_line or _status(member.process.returncode)}"


def _status(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    return f"signal {-returncode}"
