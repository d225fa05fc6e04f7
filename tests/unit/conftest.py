"""Unit tests: no sockets, no servers, no sleeping."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# On a loaded machine an example may take any time: that is no failure.
settings.register_profile(
    "unit",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
