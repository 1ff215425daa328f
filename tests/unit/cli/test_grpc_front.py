"""The gRPC port of `serve` and `broker`, before it is opened."""

from __future__ import annotations

import pytest

from skylark.cli.errors import UsageError
from skylark.cli.grpc_front import GrpcFront
from skylark.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "value"), [("SKYLARK_PROXY_BODY_BYTES_MAX", "many"), ("SKYLARK_PROXY_NONSENSE", "1")]
)
def test_a_bad_variable_is_refused_before_servers_start(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError):
        GrpcFront(None)


def test_a_port_is_a_number_or_off() -> None:
    GrpcFront("off")
    with pytest.raises(UsageError):
        GrpcFront("http")
