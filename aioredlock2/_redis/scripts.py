"""The Lua scripts, for servers (or users) without the native conditional commands.

Without a `#!lua` line on purpose: a script with one is refused at maxmemory, RENEW and REVOKE are not,
because they call no command that needs memory. All keys are declared, so single-slot proxies work.
"""

from __future__ import annotations

import hashlib

__all__ = ["CONFIRM", "GRANT_FENCED", "RENEW", "REVOKE", "Script"]


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
# KEYS: the lock key, the fence key. ARGV: token, seed or fence, the fence key's lifetime, ttl.
# Lua's numbers are doubles: a counter is exact below 2**53, and written without an exponent. Where the
# fence key holds something else, GET's error or the text is no number either: an error, nothing written.
GRANT_FENCED = Script(
    "local held=redis.call('GET',KEYS[1]) if held and held~=ARGV[1] then return false end "
    "local was=tonumber(tostring(redis.pcall('GET',KEYS[2]) or 0)) "
    "if not (was and was<2^53) then return redis.error_reply('ERR the fence key is no counter') end "
    "local counter=math.max(was+1,tonumber(ARGV[2])) "
    "redis.call('SET',KEYS[1],ARGV[1],'PX',ARGV[4]) "
    "redis.call('SET',KEYS[2],string.format('%.0f',counter),'PX',ARGV[3]) return counter"
)
CONFIRM = Script(
    "if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end "
    "local was=tonumber(tostring(redis.pcall('GET',KEYS[2]) or 0)) "
    "if not (was and was<2^53) then return redis.error_reply('ERR the fence key is no counter') end "
    "if was<tonumber(ARGV[2]) then redis.call('SET',KEYS[2],ARGV[2],'PX',ARGV[3]) end return 1"
)
