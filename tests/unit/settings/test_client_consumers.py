"""Settings of consumers: RocketMQ's defaults and ranges, each with a clear error outside of them."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import SettingsError
from skylark.settings.client import (
    ConsumeFrom,
    MessageModel,
    PullConsumerSettings,
    PushConsumerSettings,
    consume_timestamp_ms,
)
from skylark.settings.fields import allowed_range

DEFAULTS = {
    "model": MessageModel.CLUSTERING,
    "consume_from": ConsumeFrom.LAST_OFFSET,
    "batch_max": 1,
    "threads_max": 20,
    "consume_timeout_ms": 900_000,
    "reconsume_times_max": -1,
    "suspend_ms": 1000,
    "queue_messages_max": 1000,
    "queue_mib_max": 100,
    "topic_messages_max": -1,
    "topic_mib_max": -1,
    "span_max": 2000,
    "pull_batch_max": 32,
    "pull_batch_bytes_max": 262_144,
    "pull_interval_ms": 0,
    "post_subscription": False,
    "hold_ms": 15_000,
    "pull_timeout_ms": 30_000,
    "first_pull_delay_ms": 500,
    "pull_failure_delay_ms": 1000,
    "flow_control_delay_ms": 50,
    "broker_busy_delay_ms": 20,
    "paused_delay_ms": 1000,
    "pull_idle_max_ms": 120_000,
    "rebalance_interval_ms": 20_000,
    "rebalance_gap_ms": 1000,
    "lock_interval_ms": 20_000,
    "lock_expiry_ms": 30_000,
    "lock_first_ms": 1000,
    "lock_retry_ms": 500,
    "lock_failure_delay_ms": 3000,
    "lock_timeout_ms": 1000,
    "unlock_delay_ms": 20_000,
    "offset_persist_interval_ms": 5000,
    "offset_persist_first_ms": 10_000,
    "offset_timeout_ms": 5000,
    "send_back_timeout_ms": 5000,
    "local_retry_ms": 5000,
    "reset_wait_ms": 10_000,
}


def test_defaults_are_rocketmq_s() -> None:
    settings = PushConsumerSettings()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("threads_max", 1, 1000),
        ("span_max", 1, 65_535),
        ("queue_messages_max", 1, 65_535),
        ("queue_mib_max", 1, 1024),
        ("topic_messages_max", 1, 6_553_500),
        ("topic_mib_max", 1, 102_400),
        ("pull_interval_ms", 0, 65_535),
        ("batch_max", 1, 1024),
        ("pull_batch_max", 1, 1024),
    ],
)
def test_ranges_are_rocketmq_s(name: str, low: int, high: int) -> None:
    def with_value(value: int) -> PushConsumerSettings:
        changes: dict[str, Any] = {name: value}
        return PushConsumerSettings(**changes)

    assert getattr(with_value(low), name) == low
    assert getattr(with_value(high), name) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(SettingsError, match=f"{name}: .* out of range"):
            with_value(outside)


def test_every_setting_has_its_key() -> None:
    keys = [field.metadata["java"] for field in fields(PushConsumerSettings)]
    assert len(keys) == len(set(keys))


def test_the_time_to_begin_at() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5)
    assert consume_timestamp_ms("20260102030405") == consume_timestamp_ms(moment) == moment.timestamp() * 1000
    for text in ("2026", "20261302030405", "yesterday"):
        with pytest.raises(SettingsError, match="the valid format is yyyyMMddHHmmss"):
            PushConsumerSettings(consume_timestamp=text)


def test_attempts() -> None:
    assert PushConsumerSettings().attempts_max == 16
    assert PushConsumerSettings(orderly=True).attempts_max == 2**31 - 1
    assert PushConsumerSettings(orderly=True, reconsume_times_max=0).attempts_max == 0


def shown(value: object) -> str:
    """A default as the reference writes it."""
    if value is None or value == "":
        return "empty"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


@pytest.mark.parametrize(
    ("page", "settings"),
    [("push-consumer-settings", PushConsumerSettings), ("pull-consumer-settings", PullConsumerSettings)],
)
def test_the_reference_tells_every_setting_with_its_default(page: str, settings: type[Any]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / f"{page}.md").read_text()
    rows = {
        row.split("|")[1].strip(" `"): row.split("|") for row in text.splitlines() if row.startswith("| `")
    }
    assert list(rows) == [field.name for field in fields(settings)]
    for field in fields(settings):
        _, _, key, default, allowed, meaning, _ = (cell.strip() for cell in rows[field.name])
        assert (key, default) == (f"`{field.metadata['java']}`", shown(field.default))
        assert meaning.endswith(".")
        if allowed_range(field):
            assert allowed == allowed_range(field)
