"""What a command is to a lock: read from its words, as they leave a process."""

from __future__ import annotations

from aioredlock2._redis import scripts

__all__ = ["PROBE_KEY", "is_lock_key", "lock_command"]

PROBE_KEY = b"redlock:"
"""The prefix alone, which no lock has: the greeting tries commands on it."""
GRANTS = {scripts.GRANT_FENCED.sha1, scripts.GRANT_FENCED.text}
REVOKES = {scripts.REVOKE.sha1, scripts.REVOKE.text}


def is_lock_key(key: bytes) -> bool:
    """Fence keys are kept apart: they outlive their locks."""
    return not key.endswith(b":fence")


def lock_command(words: list[bytes]) -> tuple[str, bytes, float] | None:
    """What a command is to a lock key: verb, token and ttl; None if it is nothing to one."""
    name = words[0]
    if name == b"SET" and is_lock_key(words[1]) and words[1] != PROBE_KEY:
        ttl = int(words[words.index(b"PX") + 1]) / 1000 if b"PX" in words else 0.0
        return "grant" if b"NX" in words else "renew", words[2], ttl
    if name in (b"DELEX", b"DELIFEQ") and words[1] != PROBE_KEY:
        return "revoke", words[-1], 0.0
    if name == b"DEL":
        return "revoke", b"", 0.0
    if name in (b"EVAL", b"EVALSHA") and words[3] != PROBE_KEY:
        arguments = words[3 + int(words[2]) :]
        if words[1] in REVOKES:
            return "revoke", arguments[0], 0.0
        verb = "grant" if words[1] in GRANTS else "renew"
        return verb, arguments[0], int(arguments[-1]) / 1000
    return ("look", b"", 0.0) if name in (b"GET", b"EXISTS") else None
