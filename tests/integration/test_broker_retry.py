"""Messages that wait: delay levels, retries of what a consumer could not handle, dead letters."""

import asyncio
import shutil
import statistics
from collections import Counter
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.model.message import SCHEDULE_TOPIC, StoredMessage
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.settings import FlushMode
from tests.support.broker import GROUP, BrokerClient, consumer, running_broker, until
from tests.support.clock import ManualClock
from tests.support.store import golden_settings, read_queue, unpack_golden
from tests.unit.protocol.golden_frames import Captured, captured
from tests.unit.remoting.rig import raw_client

RETRY_TOPIC = f"%RETRY%{GROUP}"
DEAD_LETTERS = f"%DLQ%{GROUP}"
SHORT_LEVELS = {"delay_levels": "1s 2s"}
LATE_MS_MAX = 20_000  # of a machine that stands still now and then
LOOKS_S = 0.35  # in which due messages are looked for three times


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return read_queue(broker.store, topic, queue_id)


def delivered(broker: Broker, topic: str) -> list[StoredMessage]:
    return [message for queue_id in range(4) for message in stored(broker, topic, queue_id)]


def send_back(
    message: StoredMessage, delay_level: int = 0, times_max: int | None = None
) -> ConsumerSendMsgBack:
    return ConsumerSendMsgBack(
        group=GROUP,
        physical_offset=message.physical_offset,
        delay_level=delay_level,
        max_reconsume_times=times_max,
    )


async def next_retry(broker: Broker, client: BrokerClient, number: int) -> StoredMessage:
    """The retry of this number, as the consumer gets it."""
    await until(lambda: broker.store.max_offset(RETRY_TOPIC, 0) > number)
    [message] = await client.pull(RETRY_TOPIC, 0, number)
    return message


# --- Retries ---


async def test_a_message_is_retried_after_its_delay_and_buried_after_its_last_attempt(tmp_path: Path) -> None:
    async with running_broker(tmp_path, store=SHORT_LEVELS) as broker, BrokerClient(broker.address) as client:
        await client.heartbeat(consumer())
        await client.send("T", b"bad", properties={"KEYS": "k", "TAGS": "A", "UNIQ_KEY": "u"})
        [message] = await client.pull("T")
        for number, level in enumerate((1, 2)):
            await client.ask(send_back(message, level, times_max=2))
            [*_, waiting] = stored(broker, SCHEDULE_TOPIC, level - 1)
            message = await next_retry(broker, client, number)
            late_ms = message.store_timestamp - waiting.store_timestamp - level * 1000
            assert 0 <= late_ms <= LATE_MS_MAX, late_ms
            assert (message.body, message.reconsume_times) == (b"bad", number + 1)
        assert stored(broker, DEAD_LETTERS) == []
        await client.ask(send_back(message, 1, times_max=2))
        [dead] = await client.pull(DEAD_LETTERS)
        assert (dead.body, dead.reconsume_times, dead.queue_id) == (b"bad", 3, 0)
        assert (dead.properties["RETRY_TOPIC"], dead.properties["DELAY"]) == ("T", "0")
        assert (dead.properties["KEYS"], dead.properties["TAGS"], dead.properties["UNIQ_KEY"]) == (
            "k",
            "A",
            "u",
        )
        assert len(stored(broker, RETRY_TOPIC)) == 2


async def test_sf_035_three_failures_and_then_success_are_four_deliveries(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await client.heartbeat(consumer())
        await client.send("T", b"stubborn")
        [message] = await client.pull("T")
        for number, wait_ms in enumerate((10_000, 30_000, 60_000)):
            await client.ask(send_back(message))
            clock.advance(wait_ms - 1)
            await asyncio.sleep(LOOKS_S)
            assert broker.store.max_offset(RETRY_TOPIC, 0) == number, "too early"
            clock.advance(1)
            message = await next_retry(broker, client, number)
            assert message.reconsume_times == number + 1
        clock.advance(3 * 3_600_000)
        await asyncio.sleep(LOOKS_S)
        assert broker.store.max_offset(RETRY_TOPIC, 0) == 3
        assert stored(broker, DEAD_LETTERS) == []


async def test_the_group_says_how_many_queues_and_attempts(tmp_path: Path) -> None:
    async with running_broker(tmp_path, store=SHORT_LEVELS) as broker, BrokerClient(broker.address) as client:
        config = SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=4, retry_max_times=1)
        broker.groups.update(config, now_ms=1)
        for number in range(40):
            await client.send("T", b"%d" % number)
        messages = await client.pull_all("T")
        await asyncio.gather(*(client.ask(send_back(message, 1)) for message in messages))
        await until(lambda: len(delivered(broker, RETRY_TOPIC)) == 40)
        again = delivered(broker, RETRY_TOPIC)
        assert {message.body for message in again} == {message.body for message in messages}
        assert len({message.queue_id for message in again}) > 1
        await asyncio.gather(*(client.ask(send_back(message, 1)) for message in again))
        assert len(stored(broker, DEAD_LETTERS)) == 40


async def test_retries_under_sync_flush(tmp_path: Path) -> None:
    store = {**SHORT_LEVELS, "flush_mode": FlushMode.SYNC}
    async with running_broker(tmp_path, store=store) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"bad")
        [message] = await client.pull("T")
        await client.ask(send_back(message, 1))
        again = await next_retry(broker, client, 0)
        await client.ask(send_back(again, -1))
        await until(lambda: broker.store.max_offset(DEAD_LETTERS, 0) == 1)


# --- As Apache's broker does ---


def same_message(message: StoredMessage) -> tuple[object, ...]:
    """What two records of one message have in common, wherever they are stored and whenever."""
    return (
        message.topic, message.queue_id, message.body, dict(message.properties), message.flag,
        message.sys_flag, message.born_timestamp, message.born_host, message.reconsume_times,
        message.prepared_transaction_offset,
    )  # fmt: skip


async def test_apaches_messages_are_sent_back_as_apache_did(tmp_path: Path, golden: Path) -> None:
    """Apache's store, Apache's requests byte for byte: our records are those that its broker wrote."""
    root = unpack_golden(golden, "clean", tmp_path)
    settings = golden_settings(golden, root)
    store = {name: getattr(settings, name) for name in ("commit_log_file_bytes", "consume_queue_file_bytes")}
    clock = ManualClock(1_794_720_000_000)  # soon after the recording
    requests = [frame for frame in captured("retry-dlq") if frame.code == RequestCode.CONSUMER_SEND_MSG_BACK]
    async with running_broker(root, store=store, clock=clock) as broker, raw_client(broker.port) as client:
        theirs = [message for level in range(18) for message in stored(broker, SCHEDULE_TOPIC, level)]
        assert len(requests) == 3
        for request in requests:
            await client.send(request.frame)
            answer = await client.receive()
            assert (answer.code, answer.remark, answer.fields) == (0, None, {})
            [*_, ours] = stored(broker, SCHEDULE_TOPIC, level_of(request) - 1)
            assert same_message(ours) in map(same_message, theirs)


def level_of(request: Captured) -> int:
    return int(request.header["extFields"]["delayLevel"]) or 3


async def test_apaches_dead_letters_are_ours(tmp_path: Path, golden: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    settings = golden_settings(golden, root)
    store = {name: getattr(settings, name) for name in ("commit_log_file_bytes", "consume_queue_file_bytes")}
    clock = ManualClock(1_794_720_000_000)
    async with (
        running_broker(root, store=store, clock=clock) as broker,
        BrokerClient(broker.address) as client,
    ):
        exhausted = [each for each in stored(broker, "%RETRY%CG_retry") if each.reconsume_times == 2]
        theirs = stored(broker, "%DLQ%CG_retry")
        assert len(exhausted) == len(theirs) == 4
        for message in exhausted:
            await client.ask(
                ConsumerSendMsgBack("CG_retry", message.physical_offset, 1, max_reconsume_times=2)
            )
        ours = stored(broker, "%DLQ%CG_retry")[len(theirs) :]
        assert sorted(map(same_message, ours), key=repr) == sorted(map(same_message, theirs), key=repr)


# --- Delays ---


async def send_delayed(client: BrokerClient, topic: str, count: int, level: int) -> None:
    """Send numbered messages with a delay level, some at a time."""
    turns = asyncio.Semaphore(64)

    async def send(number: int) -> None:
        async with turns:
            await client.send(topic, b"%d" % number, number % 4, properties={"DELAY": str(level)})

    await asyncio.gather(*map(send, range(count)))


def lateness_ms(broker: Broker, topic: str, delay_ms: int) -> list[int]:
    """How late each delayed message of a topic was delivered."""
    due = {
        message.body: message.store_timestamp + delay_ms
        for level in (1, 2)
        for message in stored(broker, SCHEDULE_TOPIC, level - 1)
        if message.properties["REAL_TOPIC"] == topic
    }
    return [message.store_timestamp - due[message.body] for message in delivered(broker, topic)]


async def test_a_delayed_message_is_delivered_as_it_was_sent(tmp_path: Path) -> None:
    async with running_broker(tmp_path, store=SHORT_LEVELS) as broker, BrokerClient(broker.address) as client:
        properties = {"DELAY": "1", "KEYS": "k", "UNIQ_KEY": "u", "TAGS": "A"}
        await client.send("T", b"later", 2, properties=properties, flag=3, born_timestamp=12)
        assert await client.pull("T", 2) == []
        [message] = await client.pull("T", 2, suspend_ms=5_000, expression="A")
        assert (message.body, message.flag, message.born_timestamp) == (b"later", 3, 12)
        assert message.properties.items() >= {**properties, "REAL_TOPIC": "T", "REAL_QID": "2"}.items()


@pytest.mark.parametrize("ending", ["stopped", "killed"])
async def test_delayed_messages_survive_a_restart(tmp_path: Path, ending: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    store = {"delay_levels": "1s 3s"}
    async with running_broker(before, store=store) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "Soon", 100, 1)
        await send_delayed(client, "Later", 400, 2)
        await until(lambda: len(delivered(broker, "Soon")) == 100)
        assert delivered(broker, "Later") == []
        if ending == "killed":
            shutil.copytree(before, after)
    if ending == "stopped":
        before.rename(after)
    async with running_broker(after, store=store) as broker:
        await until(lambda: len(delivered(broker, "Later")) >= 400)
        for topic, count in (("Soon", 100), ("Later", 400)):
            times = Counter(int(message.body) for message in delivered(broker, topic))
            assert set(times) == set(range(count)), "none is lost"
            # A broker that is killed may deliver again what it has delivered shortly before.
            assert set(times.values()) <= ({1} if ending == "stopped" else {1, 2})
        assert min(lateness_ms(broker, "Later", 3_000)) >= 0, "none is early"
        assert set(Counter(message.body for message in delivered(broker, "Later")).values()) == {1}


async def test_what_became_due_while_the_broker_was_away_is_delivered_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", 10, 5)
        clock.advance(30_000)
    clock.advance(3_600_000)
    async with running_broker(tmp_path, clock=clock) as broker:
        await until(lambda: len(delivered(broker, "T")) == 10)


async def test_a_level_above_the_table_is_its_highest(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", 1, 99)
        [waiting] = stored(broker, SCHEDULE_TOPIC, 17)
        assert waiting.properties["DELAY"] == "18"
        clock.advance(2 * 3_600_000)
        await until(lambda: len(delivered(broker, "T")) == 1)


async def test_ten_thousand_pending_messages_are_all_delivered_when_they_are_due(tmp_path: Path) -> None:
    count, clock = 10_000, ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", count, 1)
        clock.advance(999)
        await asyncio.sleep(LOOKS_S)
        assert delivered(broker, "T") == []
        clock.advance(1)
        await until(lambda: broker.delay_levels.offsets.get(1) == count, timeout_s=120)
        assert sorted(int(message.body) for message in delivered(broker, "T")) == list(range(count))


@pytest.mark.nightly  # in real time: a busy machine is late
async def test_ten_thousand_pending_messages_are_delivered_in_time(tmp_path: Path) -> None:
    count, delay_ms = 10_000, 30_000
    store = {"delay_levels": "30s"}
    async with running_broker(tmp_path, store=store) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", count, 1)
        pending = broker.store.max_offset(SCHEDULE_TOPIC, 0) - len(delivered(broker, "T"))
        assert pending == count, "all of them wait together"
        await until(lambda: broker.delay_levels.offsets.get(1) == count, timeout_s=60)
        late = lateness_ms(broker, "T", delay_ms)
        assert len(late) == count
        assert min(late) >= 0
        # 200 ms is what is wanted; a machine that stands still for a moment does not do so most of the time.
        assert statistics.quantiles(late, n=4)[0] <= 200
        assert max(late) <= LATE_MS_MAX, f"up to {max(late)} ms late"


async def test_sends_go_on_while_delayed_messages_are_delivered(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", 3_000, 1)
        clock.advance(1_000)
        sent = 0
        while broker.delay_levels.offsets.get(1, 0) < 3_000:
            await client.send("Other", b"x")
            sent += 1
        assert sent >= 5, "deliveries leave room for others between them"
        assert len(delivered(broker, "T")) == 3_000


async def test_a_level_that_cannot_be_delivered_waits_and_loses_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, BrokerClient(broker.address) as client:
        await send_delayed(client, "T", 10, 1)
        broker.store.housekeeper.disk_full.is_set = True
        clock.advance(1_000)
        await asyncio.sleep(LOOKS_S)
        assert delivered(broker, "T") == []
        broker.store.housekeeper.disk_full.is_set = False
        await until(lambda: len(delivered(broker, "T")) == 10)
        assert {message.body for message in delivered(broker, "T")} == {
            b"%d" % number for number in range(10)
        }
