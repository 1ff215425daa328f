"""What most tests of handlers begin with."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.handlers.rig import Rig, rigged


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Handlers on a store on a simulated disk. A file that needs another one has its own fixture."""
    with rigged() as made:
        yield made
