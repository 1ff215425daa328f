"""pytest fixtures, available once Skylark is installed: real servers and unique names.

Servers start with the first test that uses them and run for the whole session. Importing this module imports
no other Skylark module, so it does not slow down unrelated tests.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from skylark.testing.embedded_servers import EmbeddedServers

_NAME_CHARS_MAX = 60


@pytest.fixture(scope="session")
def skylark_servers() -> Iterator[EmbeddedServers]:
    """A name server and a broker for all tests of the session."""
    from skylark.testing.embedded_servers import EmbeddedServers  # noqa: PLC0415

    with EmbeddedServers() as servers:
        yield servers


@pytest.fixture
def skylark_namesrv(skylark_servers: EmbeddedServers) -> str:
    """The name server's address, for clients."""
    return skylark_servers.namesrv


@pytest.fixture
def skylark_topic(skylark_servers: EmbeddedServers, request: pytest.FixtureRequest) -> str:
    """A new topic for this test, with four queues."""
    return skylark_servers.create_topic(_own_name("topic", request))


@pytest.fixture
def skylark_group(request: pytest.FixtureRequest) -> str:
    """A unique group name."""
    return _own_name("group", request)


@pytest.fixture
def skylark_manual_servers() -> Iterator[EmbeddedServers]:
    """Servers for this test whose broker uses a `ManualClock`: the test advances delays."""
    from skylark.testing import ManualClock  # noqa: PLC0415
    from skylark.testing.embedded_servers import EmbeddedServers  # noqa: PLC0415

    with EmbeddedServers(clock=ManualClock()) as servers:
        yield servers


def _own_name(kind: str, request: pytest.FixtureRequest) -> str:
    test = re.sub(r"\W+", "_", request.node.name)[:_NAME_CHARS_MAX]
    return f"{kind}-{test}-{uuid.uuid4().hex[:8]}"
