"""The two Lua scripts, for servers (or users) without the native conditional commands.

Without a `#!lua` line on purpose: a script with one is refused at maxmemory, these are not, because
they call no command that needs memory. All keys are declared, so single-slot proxies work.
"""

from __future__ import annotations

import hashlib

__all__ = ["RENEW", "REVOKE", "Script"]


class Script:
    """A script's text and the name the server knows it by."""

    __slots__ = ("sha1", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha1 = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


REVOKE = Script(
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"
)
RENEW = Script(
    "if redis.call('GET',KEYS[1])==ARGV[1] then "
    "return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 0"
)
