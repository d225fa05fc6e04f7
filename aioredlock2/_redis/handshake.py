"""Dialling: redis-py opens the connection and authenticates, then we take the transport over.

The only importer of redis-py. Every option that matters is given explicitly (its defaults differ by
entry point), its retries and health checks are off, and of the connection object one private
attribute is touched (`_writer`), guarded by a contract test.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.connection import (
    AbstractConnection,
    ConnectionPool,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from aioredlock2._redis.transport import Link
from aioredlock2.errors import ConfigurationError

__all__ = ["DialError", "Dialer"]

DIAL_S_MAX = 2.0
"""Resolving, connecting, TLS and AUTH together may take so long."""
SCHEMES = ("redis://", "rediss://", "unix://")
_NOT_COPIED = frozenset(
    (
        "event_dispatcher",
        "himport_registry",
        "lib_name",
        "lib_version",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "maintenance_notification_hash",
        "maintenance_state",
        "max_connections",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "oss_cluster_maint_notifications_handler",
        "parser_class",
    )
)
"""Settings of a pool or of its own bookkeeping, or that would change how replies are read."""


class DialError(Exception):
    """A dial failed; the text is safe to show."""


class Dialer:
    """How to reach one server. Building it does no I/O."""

    def __init__(self, given: object) -> None:
        pool = _pool_of(given)
        # A Sentinel pool is only weakly referenced by its connections.
        self._pool = pool
        kwargs = {k: v for k, v in pool.connection_kwargs.items() if k not in _NOT_COPIED}
        self._secrets = _secrets_of(kwargs)
        self._kwargs = kwargs | {
            "client_name": None,
            "decode_responses": False,
            "driver_info": None,
            "health_check_interval": 0,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "retry_on_timeout": False,
            "socket_connect_timeout": DIAL_S_MAX,
            "socket_timeout": DIAL_S_MAX,
        }
        try:
            connection = self._connection()
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - redis-py raises many types here
            raise ConfigurationError(
                f"node {_shown(given)}: {self._scrub(f'{type(error).__name__}: {error}')}"
            ) from None
        if isinstance(pool, SentinelConnectionPool):
            self.address: tuple[object, ...] = (
                "sentinel",
                id(pool.sentinel_manager),
                pool.service_name,
            )
            self.name = f"sentinel:{pool.service_name}"
        elif isinstance(connection, UnixDomainSocketConnection):
            self.address = ("unix", connection.path)
            self.name = f"unix:{connection.path}"
        else:
            host, port = str(kwargs.get("host", "localhost")).lower(), int(kwargs.get("port", 6379))
            self.address = (host, port)
            self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _connection(self) -> AbstractConnection:
        return self._pool.connection_class(**self._kwargs)

    async def dial(self) -> Link:
        """A fresh, authenticated connection; names are resolved anew each time.

        Takes as long as it takes: the caller sets the limit. Raises DialError. May be cancelled at
        any point: the half-open connection is closed then.
        """
        connection = self._connection()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            _hang_up(connection)
            raise
        except (RedisError, OSError) as error:
            _hang_up(connection)
            raise DialError(self._scrub(str(error)) or type(error).__name__) from None
        except Exception as error:  # noqa: BLE001 - a credential provider may raise anything
            # Its error may quote the password: only the type is safe to show.
            _hang_up(connection)
            raise DialError(type(error).__name__) from None
        writer, connection._writer = connection._writer, None
        if writer is None:
            raise DialError("connection closed while it was opened")
        return Link(writer.transport, (connection, writer), asyncio.get_running_loop())

    def _scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())[:200]


def _hang_up(connection: AbstractConnection) -> None:
    writer, connection._writer = connection._writer, None
    if writer is not None:
        writer.transport.abort()


def _pool_of(given: object) -> ConnectionPool:
    if isinstance(given, str):
        if not given.startswith(SCHEMES):
            raise ConfigurationError(
                f"node {_shown(given)}: a URL must begin with one of {', '.join(SCHEMES)}"
            )
        try:
            return redis.asyncio.ConnectionPool.from_url(given)
        except Exception:  # noqa: BLE001 - whatever it was, its text may quote the URL
            raise ConfigurationError(
                f"node {_shown(given)}: not a URL that redis-py understands"
            ) from None
    if isinstance(given, redis.asyncio.Redis):
        return given.connection_pool
    if isinstance(given, ConnectionPool):
        return given
    raise TypeError(
        "a node must be a URL, a redis.asyncio.Redis, a redis.asyncio.ConnectionPool or a Node, "
        f"not {type(given).__module__}.{type(given).__qualname__}"
    )


def _shown(given: object) -> str:
    """A node as the user gave it, without credentials and query (which may hold some)."""
    if not isinstance(given, str):
        return type(given).__name__
    text = re.sub(r"//.*@", "//***@", given.partition("?")[0])
    try:
        urlsplit(text)
    except ValueError:
        return "'***'"
    return repr(text)


def _secrets_of(kwargs: dict[str, Any]) -> list[str]:
    names = ("password", "ssl_password")
    return [str(kwargs[name]) for name in names if kwargs.get(name)]
