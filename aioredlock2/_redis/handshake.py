"""Dialling: redis-py opens the connection and authenticates, then we take the transport over.

The only importer of redis-py. Every option that matters is given explicitly (its defaults differ by
entry point), its retries and health checks are off. Two private attributes are touched, guarded by a
contract test: the connection's `_writer` and that stream's `_transport`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.connection import (
    AbstractConnection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from aioredlock2._redis.transport import Link
from aioredlock2.errors import ConfigurationError, printable

__all__ = ["DialError", "Dialer"]

DIAL_S_MAX = 2.0
"""Resolving, connecting, TLS and AUTH together may take so long."""
SCHEMES = ("redis://", "rediss://", "unix://")
_NOT_COPIED = frozenset(
    (
        "connection_pool",
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

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class _Closed:
    """In the place of the transport that was taken over.

    A StreamWriter that is collected closes its transport: after a fork that would cut off the parent,
    since both share one epoll.
    """

    def is_closing(self) -> bool:
        return True


class Dialer:
    """How to reach one server. Building it does no I/O."""

    def __init__(self, given: object, label: str = "node") -> None:
        """`label` names the node in errors; the URL can't: it may hold a password."""
        pool = _pool_of(given, label)
        kwargs = _plain_settings(pool)
        self._connection_class = pool.connection_class
        self._secrets = _secrets_of(kwargs)
        self._kwargs = kwargs
        self._sentinels: list[ConnectionPool] = []
        if isinstance(pool, SentinelConnectionPool):
            if not pool.is_master:
                raise ConfigurationError(
                    f"{label}=sentinel:{pool.service_name}: must be a master, replicas can't vote: "
                    "give master_for(...)"
                )
            own = _sentinel_pool_without_retries(pool)
            self._sentinels = [one.connection_pool for one in own.sentinel_manager.sentinels]
            kwargs["connection_pool"] = own
        connection = self._first_connection(given, label)
        # Loading the system's certificates blocks the loop for 0.1 s or more: once is enough.
        self._tls = connection.ssl_context if isinstance(connection, SSLConnection) else None
        self.address, self.name = _whereabouts(pool, connection)

    def _first_connection(self, given: object, label: str) -> AbstractConnection:
        """Tells whether the settings make sense; does no I/O."""
        try:
            return self._connection()
        except Exception as error:  # noqa: BLE001 - redis-py raises many types here
            why = self._scrub(f"{type(error).__name__}: {error}")
        # Raised out here: in the handler, the original with its text would ride along as context.
        raise ConfigurationError(
            f"{label}={_shown(given)}: must have settings that redis-py takes: {why}"
        )

    def _connection(self) -> AbstractConnection:
        return self._connection_class(**self._kwargs)

    async def dial(self) -> Link:
        """A fresh, authenticated connection; names are resolved anew each time.

        Takes as long as it takes: the caller sets the limit. Raises DialError. May be cancelled at
        any point: the half-open connection is closed then.
        """
        loop = asyncio.get_running_loop()
        connection = self._connection()
        try:
            if self._tls is not None and isinstance(connection, SSLConnection):
                if self._tls.context is None:
                    await loop.run_in_executor(None, self._tls.get)
                connection.ssl_context = self._tls
            await connection.connect()  # type: ignore[no-untyped-call]
            if await connection.can_read():
                # Nothing was asked that isn't answered: a server without room says so and hangs up.
                said = await connection.read_response()
                raise DialError(f"unasked answer of type {type(said).__name__}")  # noqa: TRY301
        except (asyncio.CancelledError, DialError):
            _hang_up(connection)
            raise
        except (RedisError, OSError) as error:
            _hang_up(connection)
            raise DialError(self._scrub(str(error)) or type(error).__name__) from None
        except Exception as error:  # noqa: BLE001 - a credential provider may raise anything
            # Its error may quote the password: only the type is safe to show.
            _hang_up(connection)
            raise DialError(type(error).__name__) from None
        finally:
            for sentinel in self._sentinels:
                await sentinel.disconnect()
        writer, connection._writer = connection._writer, None
        if writer is None:
            raise DialError("connection closed while it was opened")
        transport, writer._transport = writer.transport, _Closed()  # type: ignore[attr-defined]
        return Link(transport, loop)

    def _scrub(self, text: str) -> str:
        text = text.partition(", with args beginning")[0]  # servers echo what they don't understand
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())[:200]


def _hang_up(connection: AbstractConnection) -> None:
    writer, connection._writer = connection._writer, None
    if writer is not None:
        writer.transport.abort()


def _plain_settings(pool: ConnectionPool, timeout: float = DIAL_S_MAX) -> dict[str, Any]:
    """A pool's connection settings, with everything off that would act on its own."""
    kwargs = {
        name: value for name, value in pool.connection_kwargs.items() if name not in _NOT_COPIED
    }
    return kwargs | {
        "client_name": None,
        "decode_responses": False,
        "driver_info": None,
        "health_check_interval": 0,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
        "socket_connect_timeout": timeout,
        "socket_timeout": timeout,
    }


def _sentinel_pool_without_retries(pool: SentinelConnectionPool) -> SentinelConnectionPool:
    """The same Sentinels, asked by clients of our own: a dead one must leave time for the others."""
    theirs = pool.sentinel_manager
    share = DIAL_S_MAX / (len(theirs.sentinels) + 1)
    ours = Sentinel([], theirs.min_other_sentinels)  # type: ignore[no-untyped-call]
    for client in theirs.sentinels:
        there = client.connection_pool
        settings = _plain_settings(there, share) | {"decode_responses": True}
        copied = ConnectionPool(connection_class=there.connection_class, **settings)
        ours.sentinels.append(redis.asyncio.Redis(connection_pool=copied))
    return SentinelConnectionPool(pool.service_name, ours)  # type: ignore[no-untyped-call]


def _whereabouts(
    pool: ConnectionPool, connection: AbstractConnection
) -> tuple[tuple[object, ...], str]:
    """What makes the address one and the same, and how to call it."""
    if isinstance(pool, SentinelConnectionPool):
        address = ("sentinel", id(pool.sentinel_manager), pool.service_name)
        return address, f"sentinel:{pool.service_name}"
    if isinstance(connection, UnixDomainSocketConnection):
        return ("unix", connection.path), f"unix:{connection.path}"
    host = str(pool.connection_kwargs.get("host", "localhost")).lower()
    port = int(pool.connection_kwargs.get("port", 6379))
    return (host, port), f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pool_of(given: object, label: str) -> ConnectionPool:
    if isinstance(given, str):
        if not given.startswith(SCHEMES):
            raise ConfigurationError(
                f"{label}={_shown(given)}: must be a URL that begins with {', '.join(SCHEMES)}"
            )
        with contextlib.suppress(Exception):  # whatever it was, its text may quote the URL
            parts = urlsplit(given)
            # redis-py takes a database that is no number for number 0, and no path for any.
            if parts.path if parts.scheme == "unix" else re.fullmatch(r"/?|/\d+", parts.path):
                return redis.asyncio.ConnectionPool.from_url(given)
        raise ConfigurationError(
            f"{label}={_shown(given)}: must be a URL that redis-py understands"
        )
    if isinstance(given, redis.asyncio.Redis):
        return given.connection_pool
    if isinstance(given, ConnectionPool):
        return given
    raise TypeError(
        f"{label}: must be a URL, a redis.asyncio.Redis, a redis.asyncio.ConnectionPool or a Node, "
        f"not {type(given).__module__}.{type(given).__qualname__}"
    )


def _shown(given: object) -> str:
    """A node as the user gave it, as far as that is safe.

    Of a URL that can't be parsed nothing is, but what comes before its "://": any part of the rest
    may be the password.
    """
    if not isinstance(given, str):
        return type(given).__name__
    scheme, separator, _ = given.partition("://")
    return repr(f"{scheme}://***" if separator else "***")


def _secrets_of(kwargs: dict[str, Any]) -> list[str]:
    names = ("password", "ssl_password")
    return [str(kwargs[name]) for name in names if kwargs.get(name)]
