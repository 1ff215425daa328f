"""The proof of the lake in its short form: random kills of broker, S3 server, service and workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.lake_proof import prove

pytestmark = [pytest.mark.nightly, pytest.mark.interop("go"), pytest.mark.timeout(1500)]


def test_every_acknowledged_message_is_in_the_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")  # restores what the proof sets
    report = prove(tmp_path, messages=2_000_000, topics=12, pause_s=4.0, seed=20261117, minutes=6)
    assert report["faults"] == [], report
    rows, acknowledged, deleted = report["rows"], report["acknowledged"], report["deleted_from_log"]
    assert isinstance(rows, int)
    assert isinstance(acknowledged, int)
    assert isinstance(deleted, int)
    assert rows >= acknowledged > 200_000  # sends fail while the broker is away, and end after six minutes
    assert deleted > 0, "the broker deleted nothing, so retention was not tried"
