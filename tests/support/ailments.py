"""What makes a running server answer with errors, and what heals it."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import hiredis

from aioredlock2.embedded import Server
from tests.support.fleet import Look
from tests.support.polling import until

__all__ = [
    "busy",
    "fail_snapshots",
    "heal_snapshots",
    "is_loading",
    "load_slowly",
    "slow_loading",
]

BUSY_AFTER_MS = 50
ENDLESS: tuple[str | bytes, ...] = ("EVAL", "while true do end", "0")

slow_loading = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]
"""Options of a server that takes a millisecond per key to load its data, and answers meanwhile."""


async def fail_snapshots(view: Look, server: Server) -> None:
    """From now on *server* refuses writes (MISCONF). Its directory is gone: never for the pool's."""
    directory = view(server).execute("CONFIG", "GET", "dir")[1].decode()
    shutil.rmtree(Path(directory))
    view(server).config_set(save="86400 1")
    view(server).execute("BGSAVE")
    await until(lambda: view(server).info("persistence")["rdb_last_bgsave_status"] == "err")


def heal_snapshots(view: Look, server: Server) -> None:
    """It takes writes again."""
    view(server).config_set(save="")


def load_slowly(view: Look, server: Server, keys: int) -> None:
    """Restart a `slow_loading` server: it gets its data back, *keys* more keys take their time."""
    view(server).execute("DEBUG", "POPULATE", keys)
    view(server).execute("SAVE")
    server.restart()


def is_loading(view: Look, server: Server) -> bool:
    """Whether *server* still reads its data from the disk."""
    return view(server).info("persistence")["loading"] == "1"


@contextlib.contextmanager
def busy(view: Look, server: Server) -> Iterator[None]:
    """In the block *server* runs a script without an end, and answers BUSY."""
    view(server).config_set(lua_time_limit=BUSY_AFTER_MS)
    with socket.create_connection((server.host, server.port)) as script:
        script.sendall(hiredis.pack_command(ENDLESS))  # type: ignore[arg-type]
        try:
            while view(server).pipeline([("PING",)]) == [b"PONG"]:
                pass  # not begun yet
            yield
        finally:
            view(server).execute("SCRIPT", "KILL")
