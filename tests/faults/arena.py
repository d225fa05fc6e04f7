"""The servers of a run, each behind a relay, and a look at them past the relays."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import hiredis

from aioredlock2 import embedded
from aioredlock2.embedded import Server
from tests.faults.plan import SIDES
from tests.support import servers
from tests.support.relay import Relay, Relays
from tests.support.servers import Kind
from tests.support.stopping import Stopping
from tests.support.view import Address, View

__all__ = ["ALL_RIGHTS", "PASSWORD", "USER", "Arena", "faketime_library"]

USER = "app"
PASSWORD = "open-sesame"
ALL_RIGHTS = ("reset", "on", f">{PASSWORD}", "~*", "+@all")
FENCE_SUFFIX = b":fence"
PREFIX = b"redlock:"

_OPTIONS = [
    *("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-min-size", "1mb"),
    *("--repl-diskless-sync-delay", "0"),
    *("--user", USER, *ALL_RIGHTS[1:]),
]
_FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"
_FAKETIME_WRAPPER = """#!/bin/sh
# Started as: --bind HOST --dir DIRECTORY ... ; the offset of the clock is read from there, each time.
FAKETIME_TIMESTAMP_FILE="$4/clock" FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 \\
DONT_FAKE_MONOTONIC=1 LD_PRELOAD={library} exec {binary} "$@"
"""


def faketime_library() -> Path | None:
    """libfaketime, where this machine has it."""
    return next(iter(sorted(Path("/").glob(_FAKETIME.lstrip("/")))), None)


class Arena(Stopping):
    """Servers with append-only files and a user of their own for the workers."""

    def __init__(self, kind: Kind, nodes: int, directory: Path) -> None:
        self.fakes_time = faketime_library() is not None
        binary = _clocked(kind, directory) if self.fakes_time else servers.binary(kind)
        self.servers = embedded.start(nodes, binary=binary, options=[*kind.options, *_OPTIONS])
        self._relays = Relays([*self.servers] * SIDES)
        self._views = {id(server): View(server) for server in self.servers}

    def relay(self, side: int, node: int) -> Relay:
        """What stands between the workers of a side and a node."""
        return self._relays[side * len(self.servers) + node]

    def urls(self, worker: int) -> list[str]:
        """What a worker is given."""
        relays = [self.relay(worker % SIDES, node) for node in range(len(self.servers))]
        return [f"redis://{USER}:{PASSWORD}@{relay.host}:{relay.port}" for relay in relays]

    def look(self, server: Address) -> View:
        """The view of a server; by one thread at a time."""
        return self._views[id(server)]

    def data(self, server: Server) -> Path:
        """The directory of a server."""
        return self.servers._directory / str(list(self.servers).index(server))

    def restart(self, server: Server, *, empty: bool) -> None:
        """Start a killed server, with what its append-only file has kept or with nothing."""
        if empty:
            for path in self.data(server).glob("append*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        server.restart()

    def set_clock(self, server: Server, seconds: float) -> None:
        """The server's wall clock is so far ahead of the machine's from now on."""
        path = self.data(server) / "clock"
        path.with_name("clock.new").write_text(f"{seconds:+.3f}")
        path.with_name("clock.new").replace(path)

    def mend(self) -> None:
        """Whatever was done to them: all servers and relays are as they were at the start."""
        for relay in self._relays:
            for direction in (relay.to_server, relay.to_client):
                direction.delay_s, direction.split, direction.rewrite = 0.0, False, None
            relay.release()
            relay.accept()
        for server in self.servers:
            server.thaw()
            if self.fakes_time:
                self.set_clock(server, 0.0)
            if not (server.is_running and self._reset(server)):
                server.restart()
                self._reset(server)

    def _reset(self, server: Server) -> bool:
        try:
            self.look(server).pipeline(
                [
                    ("REPLICAOF", "NO", "ONE"),
                    ("CONFIG", "SET", "maxmemory", 0),
                    ("CONFIG", "SET", "maxmemory-policy", "noeviction"),
                    ("ACL", "SETUSER", USER, *ALL_RIGHTS),
                ]
            )
        except OSError:
            return False
        return True

    def lock_keys(self, server: Server) -> dict[str, int]:
        """The lock keys of a server with their milliseconds to live; -1 is for ever.

        Of the fences' keys only those that would stay for ever.
        """
        view = self.look(server)
        keys = sorted(key for key in view.execute("KEYS", "*") if PREFIX in key)
        lives = view.pipeline([("PTTL", key) for key in keys]) if keys else []
        return {
            key.decode(): ms
            for key, ms in zip(keys, lives, strict=True)
            if ms == -1 or (ms != -2 and not key.endswith(FENCE_SUFFIX))
        }

    def stop(self) -> None:
        """End everything."""
        for view in self._views.values():
            view.close()
        with contextlib.suppress(ExceptionGroup, hiredis.HiredisError):
            self._relays.stop()
        self.servers.stop()


def _clocked(kind: Kind, directory: Path) -> Path:
    """A program that runs the server under a clock that can be moved."""
    wrapper = directory / "server"
    text = _FAKETIME_WRAPPER.format(library=faketime_library(), binary=servers.binary(kind))
    wrapper.write_text(text)
    os.chmod(wrapper, 0o700)  # noqa: PTH101
    return wrapper
