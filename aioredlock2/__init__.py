"""Distributed locks with a lifetime over N independent Redis or Valkey masters, for asyncio."""

from importlib.metadata import version as _version

from aioredlock2._client import Redlock
from aioredlock2._core.retry import RetryPolicy
from aioredlock2._inspection import Inspection, NodeSighting
from aioredlock2._lease import Lease, ReleaseReport
from aioredlock2._lock import Lock
from aioredlock2._node import Node, NodeState, NodeStatus
from aioredlock2.errors import (
    AcquiredTooLate,
    AcquireError,
    ConfigurationError,
    LeaseError,
    LeaseLost,
    LeaseReleased,
    LockContended,
    QuorumUnreachable,
    RedlockError,
)
from aioredlock2.outcomes import NodeOutcome, NodeRelease, Removal, Vote

__all__ = [
    "AcquireError",
    "AcquiredTooLate",
    "ConfigurationError",
    "Inspection",
    "Lease",
    "LeaseError",
    "LeaseLost",
    "LeaseReleased",
    "Lock",
    "LockContended",
    "Node",
    "NodeOutcome",
    "NodeRelease",
    "NodeSighting",
    "NodeState",
    "NodeStatus",
    "QuorumUnreachable",
    "Redlock",
    "RedlockError",
    "ReleaseReport",
    "Removal",
    "RetryPolicy",
    "Vote",
]

__version__ = _version("aioredlock2")
