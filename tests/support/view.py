"""The server's own view: what is stored, what was asked of it, who is connected.

Plain and synchronous, over a raw connection of its own that no relay touches. A call takes well
under a millisecond, so that a test can look without leaving its loop for long.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any, Protocol, Self

import hiredis

__all__ = ["Address", "Monitor", "View", "Word"]

ANSWER_S_MAX = 2.0
"""A frozen or busy server is noticed after this."""

NAME = "view"

Word = str | bytes | int | float


class Address(Protocol):
    """Anything with a TCP address, such as an embedded server or a relay."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class View:
    """Looks at one server; connects when first used, and again after a restart."""

    def __init__(self, server: Address, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._server = server
        self._answer_s_max = answer_s_max
        self._connection: _Connection | None = None

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def execute(self, *command: Word) -> Any:
        """Send any command and return its reply; an error reply is raised as hiredis.ReplyError."""
        (reply,) = self.pipeline([command])
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def pipeline(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Send all commands at once and return their replies, errors among them."""
        if self._connection is not None and not self._connection.is_alive():
            self.close()
        if self._connection is None:
            self._connection = _Connection(self._server, self._answer_s_max)
        try:
            return self._connection.ask(commands)
        except OSError:
            self.close()
            raise

    def get(self, key: str | bytes) -> bytes | None:
        """The value stored under the whole key, prefix included."""
        value: bytes | None = self.execute("GET", key)
        return value

    def pttl(self, key: str | bytes) -> int:
        """Milliseconds left; -1 without a ttl, -2 without the key."""
        return int(self.execute("PTTL", key))

    def keys(self) -> set[bytes]:
        """All keys."""
        return set(self.execute("KEYS", "*"))

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO."""
        lines: list[str] = self.execute("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def commandstats(self) -> dict[str, int]:
        """Attempts per command since the last reset, lower case ("client|list"), refused ones too.

        The view's own commands are among them.
        """
        counts = {}
        for name, text in self.info("commandstats").items():
            figures = dict(figure.split("=") for figure in text.split(","))
            attempts = int(figures["calls"]) + int(figures.get("rejected_calls", 0))
            counts[name.removeprefix("cmdstat_")] = attempts
        return counts

    def reset_commandstats(self) -> None:
        """Count from zero."""
        self.execute("CONFIG", "RESETSTAT")

    def client_list(self) -> list[dict[str, str]]:
        """CLIENT LIST, without the connections of views."""
        lines: list[str] = self.execute("CLIENT", "LIST").decode().splitlines()
        clients = [dict(fact.split("=", 1) for fact in line.split(" ")) for line in lines]
        return [client for client in clients if client["name"] != NAME]

    def acl(self, *command: str) -> Any:
        """ACL <command>, such as ``acl("SETUSER", "app", "on", ">secret", "~*", "+@all")``."""
        return self.execute("ACL", *command)

    def config_set(self, **parameters: str | int) -> None:
        """CONFIG SET; underscores in the names stand for dashes."""
        for name, value in parameters.items():
            self.execute("CONFIG", "SET", name.replace("_", "-"), value)

    @contextlib.contextmanager
    def monitor(self) -> Iterator[Monitor]:
        """See every command the server executes in the block."""
        stream = _Connection(self._server, self._answer_s_max)
        try:
            stream.ask([("MONITOR",)])
            yield Monitor(self, stream)
        finally:
            stream.close()


class Monitor:
    """The commands the server has executed since the block began."""

    def __init__(self, view: View, stream: _Connection) -> None:
        self._view = view
        self._stream = stream
        self._marks = 0
        self._seen: list[list[bytes]] = []

    def commands(self) -> list[list[bytes]]:
        """All commands so far, each as its words as sent; calls made by scripts included."""
        self._marks += 1
        mark = b"mark-%d" % self._marks
        self._view.execute("ECHO", mark)
        while (words := _words(self._stream.next_reply()))[1:] != [mark]:
            self._seen.append(words)
        return list(self._seen)


class _Connection:
    def __init__(self, server: Address, answer_s_max: float) -> None:
        self._answer_s_max = answer_s_max
        self._socket = socket.create_connection((server.host, server.port), answer_s_max)
        self._reader = hiredis.Reader()
        self.ask(
            [("CLIENT", "SETNAME", NAME)]
        )  # refused under ACL rules of a test's own: no matter

    def close(self) -> None:
        self._socket.close()

    def is_alive(self) -> bool:
        """False if the server has closed the connection since."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self._socket.settimeout(self._answer_s_max)

    def ask(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        pack: Any = hiredis.pack_command  # its stub knows tuples of one word only
        self._socket.sendall(b"".join(pack(command) for command in commands))
        return [self.next_reply() for _ in commands]

    def next_reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply


def _words(line: bytes) -> list[bytes]:
    """The words of a line of MONITOR: ``1339518083.107412 [0 127.0.0.1:60866] "get" "x"``."""
    return [
        word.decode("unicode_escape").encode("latin-1")
        for word in re.findall(rb'"((?:[^"\\]|\\.)*)"', line.partition(b"] ")[2])
    ]
