"""Topics and groups as a file: what we write, and what RocketMQ's tool writes and takes."""

from __future__ import annotations

import json

import pytest

from skylark.admin.results import Group, Topic
from skylark.cli.errors import UsageError
from skylark.cli.metadata import BATCH_MAX, Metadata, create_in_batches, parse, to_text

ORDERS = Topic("orders", 8, 4, 6, ordered=True, attributes={"message.type": "FIFO"})
BILLING = Group("billing", retries_max=3, orderly=True)
CONFIG = {
    "topicName": "orders", "readQueueNums": 8, "writeQueueNums": 4, "perm": 6, "order": True,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {"+message.type": "FIFO"},
}  # fmt: skip


def test_what_is_written_is_read() -> None:
    found = Metadata({"orders": ORDERS.to_config()}, {"billing": BILLING.to_config()})
    text = to_text(found)
    assert json.loads(text)["topicConfigTable"]["orders"]["readQueueNums"] == 8
    assert parse(text.encode(), "file") == ([ORDERS], [BILLING])


def test_what_mqadmin_exports_is_read() -> None:
    data = {
        "exportTime": 1,
        "topicConfigTable": {"orders": {**CONFIG, "attributes": {"message.type": "FIFO"}}},
        "subscriptionGroupTable": {
            "billing": {
                "groupName": "billing", "retryMaxTimes": 3, "consumeMessageOrderly": True,
                "groupRetryPolicy": {"type": "CUSTOMIZED"}, "subscriptionDataSet": None,
            }
        },
    }  # fmt: skip
    assert parse(json.dumps(data).encode(), "file") == ([ORDERS], [BILLING])


def test_lists_for_mqadmin_are_read() -> None:
    assert parse(json.dumps([CONFIG]).encode(), "file") == ([ORDERS], [])
    assert parse(b' [{"groupName": "billing"}]', "file") == ([], [Group("billing")])
    assert parse(b"{}", "file") == ([], [])


@pytest.mark.parametrize(
    "data", [b"", b"orders", b"[1]", b'[{"perm": 6}]', b'{"topicConfigTable": []}', b"\xff"]
)
def test_what_is_no_such_file_is_said(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"there\.json is not a file of `skylark cluster export`"):
        parse(data, "there.json")


def test_very_many_are_made_with_several_requests() -> None:
    asked: list[int] = []
    create_in_batches(lambda items, **where: asked.append(len(items)), range(2 * BATCH_MAX + 1), broker="b")
    assert asked == [BATCH_MAX, BATCH_MAX, 1]
    create_in_batches(lambda items, **where: asked.append(0), [])
    assert len(asked) == 3
