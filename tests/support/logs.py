"""Log records, without those of asyncio, which comments on slow callbacks in debug mode."""

from __future__ import annotations

import logging

import pytest

__all__ = ["ours"]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The library's own records, oldest first."""
    return [record for record in caplog.records if record.name == "aioredlock2"]
