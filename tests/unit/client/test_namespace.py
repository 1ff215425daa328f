"""Namespaces on the wire and off it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.namespace import with_namespace, without_namespace

NAME = st.text(st.sampled_from("abcXYZ019_-"), min_size=1)


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("g", "n%g"),
        ("n%g", "n%g"),
        ("%RETRY%g", "%RETRY%n%g"),
        ("%RETRY%n%g", "%RETRY%n%g"),
        ("%DLQ%g", "%DLQ%n%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    ],
)
def test_names_get_their_namespace_once_and_the_system_s_never(name: str, wrapped: str) -> None:
    assert with_namespace("n", name) == wrapped
    assert with_namespace("", name) == name


def test_only_the_own_namespace_is_taken_off() -> None:
    assert without_namespace("n", "%RETRY%n%g") == "%RETRY%g"
    assert without_namespace("n", "m%g") == "m%g"
    assert without_namespace("", "n%g") == "n%g"


@given(NAME, NAME, st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_off_again_is_as_before(namespace: str, name: str, prefix: str) -> None:
    assert without_namespace(namespace, with_namespace(namespace, prefix + name)) == prefix + name
