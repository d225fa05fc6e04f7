"""Each kind of node in turn."""

from __future__ import annotations

import pytest

from tests.contract.places import PLACES, Place
from tests.support import servers


@pytest.fixture(params=PLACES, ids=lambda place: place.label)
def place(request: pytest.FixtureRequest) -> Place:
    """One kind of node; skipped, with the reason, where its server can't be had."""
    chosen: Place = request.param
    if chosen.kind is not None:
        try:
            servers.binary(chosen.kind)
        except servers.Unavailable as reason:
            pytest.skip(str(reason))
    return chosen
