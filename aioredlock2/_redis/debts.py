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

    def __len__(self) -> int:
        return len(self._owed)

    def owe(self, request: Request, now: float) -> None:
        """Keep a delete that did not get through."""
        request.until = request.until or now + request.ttl_ms / 1000
        self._owed[request.token] = request
        while self._oldest().until <= now or len(self._owed) > OWED_MAX:
            del self._owed[self._oldest().token]
            if not self._owed:
                return

    def due(self, now: float, at_most: int) -> list[Request]:
        """Take out the oldest ones whose keys may still live."""
        taken: list[Request] = []
        while self._owed and len(taken) < at_most:
            request = self._owed.pop(self._oldest().token)
            if request.until > now:
                taken.append(request)
        return taken

    def _oldest(self) -> Request:
        return next(iter(self._owed.values()))
