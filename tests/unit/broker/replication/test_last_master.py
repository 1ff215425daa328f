"""What a slave remembers of its master, for the day on which it takes its place."""

import pytest

from skylark.broker.replication.last_master import LastMaster, MasterSafety
from skylark.settings import BrokerRole, BrokerSettings, FlushMode, ReplicationSettings, StoreSettings

SAFE = MasterSafety("SYNC_MASTER", "SYNC_FLUSH", 3)


def settings(role: BrokerRole, flush_mode: FlushMode, in_sync_replicas: int | None) -> BrokerSettings:
    return BrokerSettings(
        role=role,
        store=StoreSettings(flush_mode=flush_mode),
        replication=ReplicationSettings(in_sync_replicas=in_sync_replicas),
    )


@pytest.mark.parametrize(
    ("safety", "role", "flush_mode", "replicas", "words"),
    [
        (SAFE, BrokerRole.SYNC_MASTER, FlushMode.SYNC, 3, []),
        (SAFE, BrokerRole.ASYNC_MASTER, FlushMode.SYNC, 3, ["was SYNC_MASTER"]),
        (SAFE, BrokerRole.SYNC_MASTER, FlushMode.ASYNC, 3, ["was SYNC_FLUSH"]),
        (SAFE, BrokerRole.SYNC_MASTER, FlushMode.SYNC, 2, ["inSyncReplicas is 2 and was 3"]),
        (SAFE, BrokerRole.SYNC_MASTER, FlushMode.SYNC, None, ["inSyncReplicas is not set and was 3"]),
        (MasterSafety("SYNC_MASTER", "", 1), BrokerRole.SYNC_MASTER, FlushMode.ASYNC, None, []),
        (MasterSafety("ASYNC_MASTER", "ASYNC_FLUSH", 2), BrokerRole.ASYNC_MASTER, FlushMode.ASYNC, None, []),
        (MasterSafety(), BrokerRole.ASYNC_MASTER, FlushMode.ASYNC, None, []),
    ],
)
def test_in_what_a_promoted_slave_is_less_safe(
    safety: MasterSafety, role: BrokerRole, flush_mode: FlushMode, replicas: int | None, words: list[str]
) -> None:
    found = safety.shortfalls(settings(role, flush_mode, replicas))
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True)), found


def test_it_is_written_when_it_changes_and_read_again() -> None:
    marks = []
    last = LastMaster()
    last.on_change = lambda: marks.append(last.snapshot()())
    config = [("brokerRole", "SYNC_MASTER"), ("flushDiskType", "SYNC_FLUSH"), ("inSyncReplicas", "3")]
    for _ in range(2):
        last.note([*config, ("brokerName", "broker-a")])
    assert len(marks) == 1
    again = LastMaster()
    again.load(marks[0])
    assert again.safety == SAFE
    again.load(b'{"brokerRole":"SYNC_MASTER","later":1}')
    assert again.safety.is_sync_master
    last.note([("brokerRole", "ASYNC_MASTER"), ("inSyncReplicas", "")])
    assert not last.safety.is_sync_master
    assert len(marks) == 2
    with pytest.raises(ValueError, match="MasterSafety"):
        again.load(b"nonsense")
