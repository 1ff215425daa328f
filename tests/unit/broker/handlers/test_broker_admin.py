"""The broker itself: its settings, what it says of itself, cleaning, and what it has none of."""

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.monitoring.runtime_info import duration_text, size_text
from skylark.broker.monitoring.stats import STEP_S
from skylark.model import java
from skylark.protocol.bodies import DataVersion, HaStatus, decode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import (
    CheckRocksdbCqWriteProgress,
    CleanExpiredConsumeQueue,
    DeleteExpiredCommitLog,
    ExchangeBrokerHaInfo,
    ExportRocksdbConfigToJson,
    GetBrokerConfig,
    GetBrokerEpochCache,
    GetBrokerHaStatus,
    GetBrokerRuntimeInfo,
    GetColdDataFlowCtrInfo,
    RemoveColdDataFlowCtrConfig,
    ResetMasterFlushOffset,
    SetCommitLogReadMode,
    UpdateBrokerConfig,
    UpdateColdDataFlowCtrConfig,
)
from tests.support.store import sized
from tests.unit.broker.handlers.rig import Rig, outcome, rigged


async def update(rig: Rig, text: str) -> tuple[int, str | None]:
    return outcome(await rig.ask(UpdateBrokerConfig(text.encode())))


async def config(rig: Rig) -> tuple[DataVersion, dict[str, str]]:
    answer = await rig.ask(GetBrokerConfig())
    lines = bytes(answer.body).decode().splitlines()
    return decode_body(answer.fields["version"].encode(), DataVersion), dict(
        line.split("=", 1) for line in lines
    )


# --- Settings ---


async def test_settings_in_force_are_shown() -> None:
    with rigged(replica_port=None, advertised_host="10.0.0.1") as rig:
        version, shown = await config(rig)
    assert version == DataVersion(timestamp=rig.broker.started_ms)
    assert (shown["listenPort"], shown["haListenPort"]) == ("10911", "10912")
    assert (shown["brokerIP1"], shown["brokerIP2"]) == ("10.0.0.1", "10.0.0.1")


async def test_a_change_reaches_the_store_and_the_version(rig: Rig) -> None:
    assert await update(rig, "flushIntervalCommitLog=400\nfileReservedTime=7\n") == (0, None)
    store = rig.broker.store
    assert [store.settings.flush_interval_ms, store.housekeeper.settings.reserved_hours] == [400, 7]
    assert store.flusher.settings is store.reader.settings is store.settings
    version, shown = await config(rig)
    assert (version.counter, shown["fileReservedTime"]) == (1, "7")


async def test_a_new_permission_is_told_to_name_servers(rig: Rig) -> None:
    before = rig.broker.topics.data_version.counter
    changes: list[int] = []
    rig.broker.topics.on_change = lambda: changes.append(rig.broker.live.current.permission)
    assert await update(rig, "brokerPermission=6\n") == (0, None)
    assert changes == []
    assert await update(rig, "brokerPermission=4\n") == (0, None)
    assert changes == [4]
    assert rig.broker.topics.data_version.counter == before + 1
    table = rig.broker.topics.registered_table().topic_config_table
    assert table["BenchmarkTest"].perm == 4


async def test_what_cannot_change_is_refused(rig: Rig) -> None:
    assert await update(rig, "rocketmqHome=x\n") == (16, "Can not update config in black list.")
    assert (await update(rig, "listenPort=1\n"))[0] == 16
    assert await update(rig, "noSuchSetting=x\n") == (0, None)
    assert await update(rig, "") == (0, None)


# --- What the broker says of itself ---


async def info(rig: Rig) -> dict[str, str]:
    answer = await rig.ask(GetBrokerRuntimeInfo())
    assert outcome(answer) == (0, None)
    table: dict[str, str] = java.loads(bytes(answer.body))["table"]
    return table


async def test_an_empty_broker_has_an_answer_to_everything(rig: Rig) -> None:
    shown = await info(rig)
    assert shown["earliestMessageTimeStamp"] == "-1"
    assert shown["putTps"].split(" ")[0] == shown["getTransferredTps"].split(" ")[0] == "0.0"
    assert shown["brokerVersionDesc"] == "V5_3_3"
    assert shown["runtime"] == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
    assert not any(name.startswith("scheduleMessageOffset_") for name in shown)


async def test_the_version_that_tools_see_is_a_setting() -> None:
    with rigged(advertised_version="V5_5_0") as rig:
        shown = await info(rig)
    assert (shown["brokerVersion"], shown["brokerVersionDesc"]) == ("513", "V5_5_0")


async def test_a_broker_at_work(rig: Rig) -> None:
    stats, clock = rig.broker.stats, rig.clock
    started = clock.now_ms()
    placed = [rig.put(), rig.put()]
    stats.count_puts(placed)
    stats.count_gets("T", "CG", 2, 200)
    rig.put("SCHEDULE_TOPIC_XXXX", 2)
    rig.broker.delay_levels.offsets = {1: 0, 3: 0}
    stats.step(clock.monotonic(), clock.now_ms())
    clock.advance(int(STEP_S * 1000))
    shown = await info(rig)
    size = sum(place.size for place in placed)
    assert shown["earliestMessageTimeStamp"] == str(started)
    assert shown["putMessageTimesTotal"] == shown["msgPutTotalTodayNow"] == "2"
    assert shown["putMessageSizeTotal"] == str(size)
    assert shown["putMessageAverageSize"] == str(size / 2)
    assert shown["msgGetTotalTodayNow"] == "2"
    assert [name for name in shown if name.startswith("scheduleMessageOffset_")] == [
        "scheduleMessageOffset_3"
    ]
    assert shown["scheduleMessageOffset_3"] == "0,1"
    assert shown["commitLogMaxOffset"] == str(rig.broker.store.appended_offset)
    assert float(shown["commitLogDiskRatio"]) <= 1
    assert shown["putTps"] == "0.0  ", "nothing since the last step, and no sample that is a minute old"


def test_sizes_and_durations_are_written_as_rocketmq_does() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 1536, 230_700_000_000, 1 << 70)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "214.9 GiB", "1024.0 EiB",
    ]  # fmt: skip
    assert (
        duration_text(((1 * 24 + 2) * 60 + 3) * 60_000 + 4999) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    )


# --- Cleaning ---


async def test_cleaning_waits_neither_for_its_time_nor_for_the_hour() -> None:
    settings = {"reserved_hours": 0, "clean_first_delay_ms": 10**9, "delete_hours": ""}
    with rigged(store=settings) as rig:
        for _ in range(12):
            rig.append(sized(1000))
        rig.clock.advance(60_000)
        assert rig.broker.store.housekeeper.clean_step() > 0
        assert outcome(await rig.ask(CleanExpiredConsumeQueue())) == (0, None)
        rig.broker.store.housekeeper.clean_step()
        assert rig.broker.store.log.min_offset == 0, "queues follow the log, which nobody has shortened"
        assert outcome(await rig.ask(DeleteExpiredCommitLog())) == (0, None)
        rig.broker.store.housekeeper.clean_step()
        assert rig.broker.store.log.min_offset > 0
        assert rig.broker.store.min_offset("T", 0) > 0


# --- Replicas ---


async def test_a_master_without_slaves(rig: Rig) -> None:
    rig.put()
    answer = await rig.ask(GetBrokerHaStatus())
    status = decode_body(answer.body, HaStatus)
    assert (status.master, status.in_sync_slave_nums, status.ha_connection_info) == (True, 0, [])
    assert status.master_commit_log_max_offset == rig.broker.store.appended_offset
    answer = await rig.ask(ExchangeBrokerHaInfo())
    assert answer.fields == {
        "masterAddress": "127.0.0.1:10911",
        "masterHaAddress": "127.0.0.1:10912",
        "masterFlushOffset": "0",
    }
    assert outcome(await rig.ask(ResetMasterFlushOffset(5))) == (0, None)
    answer = await rig.ask(GetBrokerEpochCache())
    assert outcome(answer) == (1, "this request only for controllerMode ")


# --- Cold reads ---


async def cold_reads(rig: Rig) -> Any:
    answer = await rig.ask(GetColdDataFlowCtrInfo())
    return java.loads(bytes(answer.body))


async def limit(rig: Rig, text: bytes) -> tuple[int, str | None]:
    return outcome(await rig.ask(UpdateColdDataFlowCtrConfig(text)))


async def test_limits_for_cold_reads_are_kept_and_shown() -> None:
    with rigged(groups_max=2, limit_cold_reads=True) as rig:
        assert await limit(rig, b"CG=1000\n") == (0, None)
        rig.broker.cold_reads.count("CG", 7, now=rig.clock.monotonic(), now_ms=rig.clock.now_ms())
        now_ms = rig.clock.now_ms()
        assert await cold_reads(rig) == {
            "runtimeTable": {
                "CG": {"coldAcc": 7, "createTimeMills": now_ms, "lastColdReadTimeMills": now_ms}
            },
            "configTable": {"CG": 1000},
            "cgColdReadThreshold": 3145728,
            "globalColdReadThreshold": 104857600,
            "globalAcc": 7,
        }
        assert (await limit(rig, b"A=1\nB=2\n"))[0] == 1
        assert rig.broker.cold_reads.limits == {"CG": 1000}
        await rig.ask(RemoveColdDataFlowCtrConfig(b"CG"))
        await rig.ask(RemoveColdDataFlowCtrConfig(b"never"))
        assert rig.broker.cold_reads.limits == {}


async def test_limits_for_cold_reads_that_have_no_effect_say_so(rig: Rig) -> None:
    remark = "kept, and without effect until coldDataFlowControlEnable is true"
    assert await limit(rig, b"CG=1000\n") == (0, remark)
    assert (await cold_reads(rig))["configTable"] == {"CG": 1000}


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 19, ""])
async def test_limits_for_cold_reads_are_numbers(rig: Rig, value: str) -> None:
    code, remark = await limit(rig, f"CG=1\nDG={value}\n".encode())
    assert (code, remark) == (29, f"limit of group DG is {value!r}, allowed is a number of bytes")
    assert rig.broker.cold_reads.limits == {}


async def test_limits_for_cold_reads_are_of_groups_that_can_be_told(rig: Rig) -> None:
    remark = "group '\\ud800' has characters that cannot be printed"
    assert await limit(rig, rb"\ud800=1") == (29, remark)
    assert (await limit(rig, rb"CG=\ud800"))[0] == 29
    assert (await cold_reads(rig))["configTable"] == {}


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("0", 0, "set commitlog readahead mode success, mode: 0"),
        ("1", 1, "set commitlog readahead mode failed"),
        ("2", 29, "set commitlog readahead mode param value error"),
    ],
)
async def test_only_the_kernels_way_of_reading_ahead_is_there(
    rig: Rig, mode: str, code: int, words: str
) -> None:
    answer = await rig.ask(SetCommitLogReadMode(mode))
    assert answer.code == code
    assert (answer.remark or "").startswith(words)


# --- What there is none of ---


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ExportRocksdbConfigToJson("topics;"), (0, "export done.")),
        (RemotingCommand(code=RequestCode.POP_ROLLBACK), (0, "not set any response code")),
    ],
)
async def test_tools_that_ask_in_vain_get_rocketmqs_answer(rig: Rig, request_: Any, expected: Any) -> None:
    assert outcome(await rig.ask(request_)) == expected


async def test_there_is_nothing_to_check_of_rocksdb(rig: Rig) -> None:
    answer = await rig.ask(CheckRocksdbCqWriteProgress("T"))
    assert (answer.code, java.loads(bytes(answer.body))["checkStatus"]) == (0, 0)


async def test_a_directory_that_is_not_there_yet_has_a_disk_all_the_same(tmp_path: Path) -> None:
    with rigged(store={"commit_log_path": tmp_path / "a" / "b"}) as rig:
        assert (await info(rig))["commitLogDirCapacity"].startswith("Total : ")
