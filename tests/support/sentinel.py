"""A real Sentinel process, told by hand which server is whose master."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from aioredlock2 import embedded
from aioredlock2.embedded import Server
from tests.support import servers
from tests.support.servers import Kind
from tests.support.view import View

__all__ = ["SentinelServer", "sentinel"]

START_S_MAX = 10.0


class SentinelServer:
    """One Sentinel; it watches what `monitor` names and never fails over by itself."""

    def __init__(self, port: int) -> None:
        self.host = embedded.HOST
        self.port = port
        self._view = View(self)

    def monitor(self, service: str, master: Server) -> None:
        """From now on *master* is the master of *service*."""
        self.forget(service)
        self._view.execute("SENTINEL", "MONITOR", service, master.host, master.port, 1)

    def forget(self, service: str) -> None:
        """*service* has no master known here."""
        with contextlib.suppress(Exception):
            self._view.execute("SENTINEL", "REMOVE", service)

    def answers(self) -> bool:
        """True once it is there."""
        with contextlib.suppress(OSError):
            return bool(self._view.execute("PING") == b"PONG")
        return False

    def close(self) -> None:
        """Hang up."""
        self._view.close()


@contextlib.contextmanager
def sentinel(kind: Kind = Kind.VALKEY9) -> Generator[SentinelServer]:
    """Start a Sentinel of *kind* without any master; it ends with the block."""
    (port,) = embedded._free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "sentinel.conf"
        config.write_text(f"port {port}\nbind {embedded.HOST}\ndir {folder}\n")
        process = subprocess.Popen(
            [servers.binary(kind), config, "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        running = SentinelServer(port)
        try:
            deadline = time.monotonic() + START_S_MAX
            while not running.answers():
                assert process.poll() is None, "the Sentinel has ended"
                assert time.monotonic() < deadline, "the Sentinel does not answer"
                time.sleep(0.005)
            yield running
        finally:
            running.close()
            process.kill()
            process.wait()
