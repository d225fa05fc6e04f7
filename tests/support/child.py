"""A Python process of its own: to be frozen, killed, interrupted, or looked at when it ends.

with Child("tests.support.some_program", *urls) as child:
    assert "held" == child.line()     # what it printed
    child.freeze()
    child.thaw()
    assert 0 == child.finish().status
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.stopping import Stopping

__all__ = ["Child", "Finished"]

ROOT = Path(__file__).parents[2]
START_S_MAX = 30.0
"""A Python that imports redis-py may take its time on a busy machine."""


@dataclass(frozen=True)
class Finished:
    """How a process ended."""

    status: int
    """Its exit status; minus the signal's number if a signal ended it."""
    lines: list[str]
    """What it printed that was not read before."""
    errors: str
    """What it wrote to stderr."""


class Child(Stopping):
    """``python [options] -m module [arguments]``, killed at the latest when the block ends."""

    def __init__(self, module: str, *arguments: object, options: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *options, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._read = b""

    def stop(self) -> None:
        """Kill it, if it still is there."""
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid

    def line(self, within: float = START_S_MAX) -> str:
        """The next line of its output; blocks. Fails if it ends or keeps silent instead."""
        deadline = time.monotonic() + within
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(deadline - time.monotonic()):
                    raise AssertionError(f"no line within {within:g} s")
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    raise AssertionError(f"it has ended: {self.finish()}")
                self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def tell(self, line: str) -> None:
        """Write a line to its input."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(line.encode() + b"\n")
        stdin.flush()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP: it stands still when this returns."""
        self.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was stopped."""
        self.send_signal(signal.SIGCONT)

    def finish(self, within: float = START_S_MAX) -> Finished:
        """Wait for its end."""
        output, errors = self._process.communicate(timeout=within)
        lines = (self._read + output).decode().splitlines()
        return Finished(self._process.returncode, lines, errors.decode())
