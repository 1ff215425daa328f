"""Tables with settings, and what Apache's broker answered to the questions that they decide."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylark.broker.clients import ConnectedClient
from skylark.errors import BrokerError
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from tests.unit.protocol.golden_frames import Captured, captured

NOW_MS = 1_700_000_000_000
CONFIG = Path(__file__).parents[2] / "golden" / "java_json" / "config"


def live(**settings: Any) -> LiveSettings[BrokerSettings]:
    return LiveSettings(BrokerSettings(**settings))


def golden_config(name: str) -> bytes:
    """A metadata file that Apache's broker wrote."""
    return (CONFIG / name).read_bytes()


def answers(scenario: str, *request_codes: int) -> Iterator[tuple[Captured, Captured]]:
    """Yield captured questions and answers."""
    for frame in captured(scenario):
        if frame.asked is not None and frame.asked.code in request_codes:
            yield frame.asked, frame


def refusal(error: BrokerError) -> tuple[int, str]:
    return error.code, error.remark


@dataclass(eq=False)
class FakeChannel:
    """Stands for a connection."""

    address: str = "127.0.0.1:43172"
    is_closed: bool = False
    is_writable: bool = True


def client(channel: FakeChannel | None = None, client_id: str = "c1") -> ConnectedClient:
    return ConnectedClient(channel or FakeChannel(), client_id, "JAVA", 479)
