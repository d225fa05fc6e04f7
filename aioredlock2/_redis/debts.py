"""PURE: the deletes a node still has to be sent, each until its key has expired anyway."""

from __future__ import annotations

from aioredlock2._node import Request

__all__ = ["Debts"]

OWED_MAX = 20_000
"""Deletes kept for a node that is away; the oldest beyond that are left to their ttl."""


class Debts:
    """Deletes owed, one per token."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[bytes, Request] = {}

    def owe(self, request: Request, now: float) -> None:
        """Keep a delete that did not get through."""
        request.until = request.until or now + request.ttl_ms / 1000
        self._owed[request.token] = request
        if len(self._owed) > OWED_MAX:
            del self._owed[next(iter(self._owed))]

    def due(self, now: float) -> list[Request]:
        """Take all out; those whose key may still live."""
        owed, self._owed = self._owed, {}
        return [request for request in owed.values() if request.until > now]
