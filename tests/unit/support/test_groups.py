"""Tests that share servers run on one worker: pytest-xdist groups what `tests/conftest.py` marks."""

import pytest


@pytest.fixture(scope="module")
def server() -> str:
    return "shared by this module"


def test_a_module_with_servers_of_its_own_is_a_group(server: str, request: pytest.FixtureRequest) -> None:
    assert server
    marks = [mark.args for mark in request.node.iter_markers("xdist_group")]
    assert marks == [("test_groups",)]
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@test_groups"), "pytest-xdist spreads the tests of a group"
