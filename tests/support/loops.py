"""Loops of a test's own, of the kind that the run is about (`AIOREDLOCK2_TEST_LOOP`)."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in a new loop; fails if anything reached the loop's exception handler.

    Garbage is collected after it, so that a transport that was left open warns here.
    """
    kind = os.environ.get("AIOREDLOCK2_TEST_LOOP", "asyncio")
    errors: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        factory = None
        if kind == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
            # It warns of every transport that is open when it is closed, and closes it; made an
            # error, the warning would keep its close() from ever returning.
            warnings.filterwarnings("ignore", "unclosed resource <TCPTransport", ResourceWarning)
        with asyncio.Runner(debug=kind == "debug", loop_factory=factory) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
            result = runner.run(coroutine)
    gc.collect()
    assert [] == errors
    return result
