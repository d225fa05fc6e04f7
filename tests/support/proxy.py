"""Proxies that speak less Redis than the server behind them."""

from __future__ import annotations

from tests.support.relay import Relay

__all__ = ["forget"]


def forget(relay: Relay, *commands: bytes) -> None:
    """From now on these commands, in upper case as they are sent, are unknown behind *relay*."""

    def rewrite(data: bytes) -> bytes:
        for command in commands:
            data = data.replace(b"\r\n" + command, b"\r\nX" + command[1:])
        return data

    relay.to_server.rewrite = rewrite
