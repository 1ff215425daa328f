"""Whatever comes in is answered with a code or closes its own connection, and a healthy client goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fuzz.broker
from skylark.broker.request_routes import SERVED
from skylark.model.message import SCHEDULE_TOPIC, SystemFlag, encode_properties
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand, encode, prefix
from skylark.protocol.requests import REQUESTS
from skylark.protocol.requests.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PullMessage
from skylark.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from tests.integration.broker_rig import Healthy, anonymous_bytes, goes_on, healthy_client, wire
from tests.support.broker import BrokerClient, running_broker, until
from tests.unit.protocol.golden_frames import lines


def framed(
    code: int, fields: dict[str, Any] | None = None, body: bytes = b"", *, opaque: int = 1, flag: int = 0
) -> bytes:
    """A frame with any fields, as JSON writes them: also numbers, lists and null."""
    header = {"code": code, "extFields": fields or {}, "flag": flag, "opaque": opaque, "language": "JAVA"}
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return prefix(len(text), len(body)) + text + body


SEND = SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 1, 0).to_command().fields
OLD_SEND = SendMessage("PG", "T", "TBW102", 4, 0, 0, 1, 0).to_command().fields
BATCH = SendBatchMessage("PG", "T", "TBW102", 4, 0, 0, 1, 0, batch=True).to_command().fields
PULL = PullMessage("CG", "T", 0, 0, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*").to_command().fields


def send(body: bytes = b"x", /, **changes: Any) -> bytes:
    return framed(310, {**SEND, **changes}, body)


def named(**properties: str) -> str:
    return encode_properties(properties).decode()


def without(fields: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in fields.items() if key != name}


def element(body: bytes, *, total: int | None = None, body_bytes: int | None = None) -> bytes:
    size = BATCH_ELEMENT.size + len(body) + 2 if total is None else total
    length = len(body) if body_bytes is None else body_bytes
    return BATCH_ELEMENT.pack(size, 0, 0, 0, length) + body + LENGTH.pack(0)


def pull(**changes: Any) -> bytes:
    return framed(11, {**PULL, **changes})


# Name: the frame, and the codes that may answer it.
SENDS: dict[str, tuple[bytes, int]] = {
    "queue 10^9": (send(e="1000000000"), 29),
    "queue x": (send(e="x"), 1),
    "queue empty": (send(e=""), 1),
    "queue 2^31": (send(e=str(1 << 31)), 1),
    "queue -2^31": (send(e=str(-(1 << 31))), 0),
    "queue a float": (send(e="0.5"), 1),
    "queue -1": (send(e="-1"), 0),
    "queue a number, as other clients write it": (send(e=0), 0),
    "flags all": (send(f="-1"), 13),
    "flags x": (send(f="x"), 1),
    "born -1": (send(g="-1"), 0),
    "born 10^30": (send(g="9" * 30), 1),
    "batch maybe": (send(m="maybe"), 0),
    "queues -3": (send(b="Few", d="-3"), 29),
    "queues 2^31-1": (send(b="Many", d=str((1 << 31) - 1)), 0),
    "extra fields": (framed(310, {**SEND, "zz": "1", "": "empty", "ü": "ü"}, b"x"), 0),
    "200 extra fields": (framed(310, {**SEND, **{f"x{number}": "1" for number in range(200)}}, b"x"), 0),
    "topic empty": (send(b=""), 29),
    "topic blank": (send(b=" "), 29),
    "topic of 128": (send(b="t" * 128), 29),
    "topic of 60000": (send(b="t" * 60_000), 29),
    "topic ../x": (send(b="../x"), 29),
    "topic %RETRY%../x": (send(b="%RETRY%../x"), 29),
    "topic /etc/passwd": (send(b="/etc/passwd"), 29),
    "topic with NUL": (send(b="t\x00"), 29),
    "topic unicode": (send(b="тема"), 29),
    "topic null": (send(b=None), 1),
    "topic of the schedule": (send(b=SCHEDULE_TOPIC), 16),
    "topic of half messages": (send(b="RMQ_SYS_TRANS_HALF_TOPIC"), 16),
    "topic of half messages done": (send(b="RMQ_SYS_TRANS_OP_HALF_TOPIC"), 16),
    "topic TBW102": (send(b="TBW102"), 0),
    "default topic unknown": (send(b="Unknown", c="NoSuch"), 17),
    "properties of 32768": (send(i=named(k="v" * 32_768)), 13),
    "properties of 200000": (send(i=named(k="v" * 200_000)), 13),
    "properties with control characters": (send(i=named(k="\x03\x1b\x7f")), 0),
    "properties with a zero": (send(i=named(k="\x00")), 13),
    "properties with separators only": (send(i="\x01\x02\x02\x01\x01\x02"), 0),
    "properties without separators": (send(i="nonsense"), 0),
    "DELAY=99": (send(i=named(DELAY="99")), 0),
    "DELAY=-1": (send(i=named(DELAY="-1")), 0),
    "DELAY=x": (send(i=named(DELAY="x")), 0),
    "DELAY of 10000 digits": (send(i=named(DELAY="9" * 10_000)), 0),
    "a forged half message": (send(i=named(TRAN_MSG="true", PGROUP="PG")), 0),
    "a timer": (send(i=named(TIMER_DELAY_SEC="1000")), 0),
    "a timer for never": (send(i=named(TIMER_DELAY_SEC="9" * 5000)), 13),
    "a message for the timers themselves": (send(b="rmq_sys_wheel_timer"), 16),
    "two unique keys": (send(i="UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02"), 0),
    "forged inner number": (send(i=named(INNER_NUM="1000000")), 0),
    "compressed garbage": (send(b"no zlib", f=str(int(SystemFlag.COMPRESSED))), 0),
    "no body": (send(b""), 1),
    "body above the limit": (send(b"x" * ((4 << 20) + 1)), 13),
    "old form, missing": (framed(10, without(OLD_SEND, "topic"), b"x"), 1),
    "old form, mistyped": (framed(10, {**OLD_SEND, "queueId": "x"}, b"x"), 1),
    **{f"missing {name}": (framed(310, without(SEND, name), b"x"), 1) for name in "abcdefgh"},
}
BATCHES: dict[str, tuple[bytes, int]] = {
    name: (framed(320, BATCH, body), 13)
    for name, body in {
        "one byte": b"x",
        "total 0": element(b"x", total=0),
        "total -1": element(b"x", total=-1),
        "total 2^31-1": element(b"x", total=(1 << 31) - 1),
        "body -1": element(b"x", body_bytes=-1),
        "body 2^31-1": element(b"x", body_bytes=(1 << 31) - 1),
        "the second lies": element(b"x") + element(b"y", total=7),
        "cut": (element(b"x") * 3)[:-1],
        "garbage": bytes(range(256)) * 10,
        "zeros": bytes(4096),
    }.items()
}
BATCHES |= {
    "no message": (framed(320, BATCH, b""), 1),
    "a hundred thousand empty ones": (framed(320, BATCH, element(b"") * 100_000), 13),
    "compressed": (framed(320, {**BATCH, "f": "1"}, element(b"no zlib")), 0),
    "of a retry topic": (framed(320, {**BATCH, "b": "%RETRY%CG"}, element(b"x")), 13),
    "delayed": (framed(320, {**BATCH, "i": named(DELAY="1")}, element(b"x")), 13),
    "by the flag of a single send": (framed(310, {**SEND, "m": "true"}, b"x"), 13),
}
PULLS: dict[str, tuple[bytes, int]] = {
    "offset -1": (pull(queueOffset="-1"), 21),
    "offset -2^63": (pull(queueOffset=str(-(1 << 63))), 21),
    "offset beyond": (pull(queueOffset="1000"), 21),
    "offset 2^63-1": (pull(queueOffset=str((1 << 63) - 1)), 21),
    "offset 2^63": (pull(queueOffset=str(1 << 63)), 1),
    "offset x": (pull(queueOffset="x"), 1),
    "queue -1": (pull(queueId="-1"), 29),
    "queue 10^9": (pull(queueId="1000000000"), 29),
    "queue x": (pull(queueId="x"), 1),
    "messages 2^31-1": (pull(maxMsgNums=str((1 << 31) - 1)), 0),
    "messages 0": (pull(maxMsgNums="0"), 0),
    "messages -1": (pull(maxMsgNums="-1"), 0),
    "flags all": (pull(sysFlag="-1", queueOffset="0"), 0),
    "commit beyond": (pull(commitOffset=str(1 << 60), sysFlag=str(PULL_COMMIT_OFFSET | 4)), 0),
    "suspended for ever": (pull(suspendTimeoutMillis=str((1 << 63) - 1)), 0),
    "topic unknown": (pull(topic="Unknown"), 17),
    "topic ../x": (pull(topic="../x"), 17),
    "group empty": (pull(consumerGroup=""), 26),
    "group ../x": (pull(consumerGroup="../x"), 26),
    "group of 1000": (pull(consumerGroup="g" * 1000), 26),
    "expression ||": (pull(subscription="||"), 23),
    "expression of 200000": (pull(subscription="a||" * 66_000), 20),
    "expression type unknown": (pull(subscription="x", expressionType="XPATH"), 1),
    "SQL": (pull(subscription="a > ", expressionType="SQL92"), 23),
    "SQL, very deep": (pull(subscription="(" * 8000, expressionType="SQL92"), 23),
    "SQL, very long": (pull(subscription="(" * 50_000, expressionType="SQL92"), 23),
    **{
        f"missing {name}": (framed(11, without(PULL, name)), 1)
        for name in PULL
        if name not in ("subscription", "expressionType")
    },
}


def beat(**members: Any) -> bytes:
    body = {"clientID": "bad@1", "consumerDataSet": [], "producerDataSet": [], **members}
    return framed(34, {}, json.dumps(body).encode())


def group(name: str, **members: Any) -> dict[str, Any]:
    return {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [],
        **members,
    }


HEARTBEATS: dict[str, tuple[bytes, int]] = {
    "no body": (framed(34), 1),
    "no JSON": (framed(34, {}, b"\x00\xff"), 1),
    "a list": (framed(34, {}, b"[]"), 1),
    "a number": (framed(34, {}, b"7"), 1),
    "very deep": (framed(34, {}, b'{"a":' * 100_000), 1),
    "very deep lists": (framed(34, {}, b"[" * 100_000 + b"]" * 100_000), 1),
    "invalid UTF-8": (framed(34, {}, b'{"clientID":"\xff"}'), 1),
    "lone surrogate": (framed(34, {}, b'{"clientID":"\\ud800"}'), 1),
    "NaN": (framed(34, {}, b'{"clientID":NaN}'), 1),
    "no client id": (framed(34, {}, b"{}"), 1),
    "client id a list": (beat(clientID=[]), 1),
    "groups a number": (beat(consumerDataSet=7), 1),
    "group without a name": (beat(consumerDataSet=[{}]), 1),
    "group name a number": (beat(consumerDataSet=[group(7)]), 1),  # type: ignore[arg-type]
    "group ../x": (beat(consumerDataSet=[group("../x")]), 0),
    "subscription without a topic": (beat(consumerDataSet=[group("CG", subscriptionDataSet=[{}])]), 1),
    "as many consumer groups as fit a frame": (
        beat(consumerDataSet=[group(f"g{number}") for number in range(80_000)]),
        1,
    ),
    "as many producer groups as fit a frame": (
        beat(producerDataSet=[{"groupName": f"p{number}"} for number in range(400_000)]),
        1,
    ),
    "a hundred thousand subscriptions": (
        beat(
            consumerDataSet=[
                group("Many", subscriptionDataSet=[{"topic": f"t{each}"} for each in range(100_000)])
            ]
        ),
        1,
    ),
}
OTHERS: dict[str, tuple[bytes, int]] = {
    "unknown code": (framed(9999), 3),
    "code -1": (framed(-1), 3),
    "code 2^31-1": (framed((1 << 31) - 1), 3),
    "code 0": (framed(0), 3),
    "a name server's": (framed(103, {"brokerName": "fake", "brokerAddr": "1.2.3.4:5"}, b"{}"), 3),
    "the broker's own": (framed(40, {"consumerGroup": "CG"}), 3),
    "opaque -2^31": (framed(9999, opaque=-(1 << 31)), 3),
    "commit without an offset": (framed(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0"}), 29),
    "commit of an unknown group": (
        framed(15, {"consumerGroup": "Unknown", "topic": "T", "queueId": "0", "commitOffset": "1"}),
        26,
    ),
    "commit in queue x": (
        framed(15, {"consumerGroup": "CG", "topic": "T", "queueId": "x", "commitOffset": "1"}),
        1,
    ),
    "message at -1": (framed(33, {"offset": "-1"}), 1),
    "message beyond the end": (framed(33, {"offset": str(1 << 62)}), 1),
    "message amid another": (framed(33, {"offset": "3"}), 1),
    "send back what is not there": (framed(36, {"offset": "7", "group": "CG", "delayLevel": "0"}), 1),
    "lock nothing": (framed(41, {}, b"{}"), 1),
    "settings nobody knows": (framed(25, {}, b"nonsense=\xff\n\x00"), 0),
    "a setting out of range": (framed(25, {}, b"brokerPermission=99"), 29),
    "a setting of this run": (framed(25, {}, b"listenPort=1"), 16),
}
ALL = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("send", SENDS),
        ("batch", BATCHES),
        ("pull", PULLS),
        ("heartbeat", HEARTBEATS),
        ("other", OTHERS),
    )
    for name, case in cases.items()
}


@pytest.fixture(autouse=True)
def no_handler_failed(caplog: pytest.LogCaptureFixture) -> Any:
    """What clients do may be refused; it must not meet an error that nobody thought of."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [each.getMessage() for each in caplog.records if "failed" in each.getMessage()] == []


@pytest.mark.parametrize("kind", ["send", "batch", "pull", "heartbeat", "other"])
async def test_bad_requests_are_answered_with_their_code(tmp_path: Path, kind: str) -> None:
    cases = {name: case for name, case in ALL.items() if name.startswith(kind)}
    async with running_broker(tmp_path) as broker:
        async with BrokerClient(broker.address) as client:
            await client.send("T", b"there")
            await client.pull("T")
        async with healthy_client(broker.address) as healthy:
            codes = {}
            for name, (data, _) in cases.items():
                async with wire(broker.address) as bad:
                    codes[name] = (await bad.ask(data)).code
                    # The connection is still good.
                    assert (await bad.ask(framed(38, {"consumerGroup": "Nobody"}, opaque=2))).opaque == 2
            assert codes == {name: code for name, (_, code) in cases.items()}
            assert healthy.slowest_s < 20
        await until(lambda: not broker._server.peers)
        assert broker._server.bytes_in_flight == 0
        assert not broker._server.tasks


def test_nothing_bad_was_stored(tmp_path: Path) -> None:
    """What was refused left no trace, and what was taken reads back whole."""
    asyncio.run(store_all_that_is_taken(tmp_path))
    assert not list(tmp_path.glob("**/x"))
    assert all(".." not in str(path) for path in tmp_path.rglob("*"))


async def store_all_that_is_taken(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, wire(broker.address) as bad:
        taken = 0
        for data, code in [*SENDS.values(), *BATCHES.values()]:
            taken += (await bad.ask(data)).code == 0
            assert code in (0, 1, 2, 13, 16, 17, 29)
        assert broker.stats.puts.count == taken
        store = broker.store
        stored = sum(store.max_offset(topic, queue) for topic, queue in list(store.queues))
        assert stored == taken
        for topic, queue in list(store.queues):
            for message in store.get(topic, queue, 0, 32).messages():
                assert message.topic == topic


def headed(text: bytes) -> bytes:
    return prefix(len(text), 0) + text


CLOSING = {
    "length 0": b"\0\0\0\0",
    "length 1": b"\0\0\0\1\0\0\0\0",
    "length 3": b"\0\0\0\3\0\0\0",
    "length -1": b"\xff\xff\xff\xff\0\0\0\2{}",
    "length 2^31-1": b"\x7f\xff\xff\xff",
    "length limit+1": ((16 << 20) - 3).to_bytes(4, "big"),
    "header longer than frame": b"\0\0\0\x0a\0\0\0\x64{}    ",
    "header above the limit": prefix(300_000, 0) + b" " * 300_000,
    "unknown encoding": prefix(2, 0, 9) + b"{}",
    "257 fields": framed(310, {f"x{number}": "1" for number in range(257)}),
    "list as field": framed(310, {**SEND, "b": []}),
    "fields a list": headed(b'{"code":310,"extFields":[]}'),
    "not an object": headed(b"[]"),
    "10^5 deep": headed(b'{"code":310,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "very deep and cut": headed(b'{"a":' * 40_000),
    "NaN": headed(b'{"code":310,"opaque":NaN}'),
    "huge integer": headed(b'{"code":310,"opaque":' + b"9" * 5000 + b"}"),
    "invalid UTF-8": headed(b'{"code":310,"remark":"\xff"}'),
    "lone surrogate": headed(b'{"code":310,"remark":"\\ud800"}'),
    "wrong type": headed(b'{"code":"x"}'),
    "binary header that lies": prefix(21, 0, 1) + struct.pack(">hBhiiihi", 310, 0, 1, 1, 0, 0, 1000, -5)[:21],
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100f1010000ed0303") + bytes(240),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
}


async def test_bytes_that_are_no_frames_close_their_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with healthy_client(broker.address):
            for name, data in CLOSING.items():
                async with wire(broker.address) as bad:
                    good = framed(310, SEND, b"good", opaque=4)
                    await bad.send(good + data + good)
                    assert (await bad.answer()).opaque == 4, name  # what came before is served
                    assert await bad.is_closed(), name
        await until(lambda: not broker._server.peers)
        assert broker._server.bytes_in_flight == 0


async def test_golden_illegal_bytes(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, healthy_client(broker.address):
        for line in lines("illegal"):
            async with wire(broker.address) as bad:
                await bad.send(bytes.fromhex(line["bytes_hex"]))
                if line["closed"]:
                    assert await bad.is_closed(), line["case"]


async def test_responses_without_requests_are_dropped(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, healthy_client(broker.address):
        async with wire(broker.address) as bad:
            for code in (0, 1, 310, 11, 34, 9999):
                await bad.send(framed(code, SEND, b"x", flag=1))
                await bad.send(framed(code, SEND, b"x", flag=3))
            answer = await bad.ask(framed(310, SEND, b"x", opaque=5))
            assert (answer.opaque, answer.fields["queueOffset"]) == (5, "0")


async def test_oneway_on_everything_answers_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, healthy_client(broker.address) as healthy:
        async with wire(broker.address) as bad:
            for name, (data, _) in ALL.items():
                if len(data) < 1 << 20 and not name.startswith("heartbeat: a"):
                    await bad.send(data.replace(b'"flag": 0', b'"flag": 2', 1))
            assert (await bad.ask(framed(38, {"consumerGroup": "Nobody"}, opaque=77))).opaque == 77
        await goes_on(healthy)


async def test_the_same_opaque_for_all(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, wire(broker.address) as client:
        await client.send(framed(310, SEND, b"x", opaque=9) * 100)
        answers = [await client.answer() for _ in range(100)]
        assert {answer.opaque for answer in answers} == {9}
        assert [answer.fields["queueOffset"] for answer in answers] == [str(each) for each in range(100)]


async def test_a_frame_in_a_thousand_pieces_and_one_that_never_ends(tmp_path: Path) -> None:
    async with running_broker(tmp_path, idle_timeout_s=3) as broker, healthy_client(broker.address):
        async with wire(broker.address) as slow, wire(broker.address) as endless:
            await endless.send(send(b"x" * 1000)[:-1])
            data = framed(310, SEND, b"x" * 600, opaque=3)
            for byte in data:
                slow.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await slow.answer()).opaque == 3
            assert await endless.is_closed(timeout_s=60)


async def test_a_frame_cut_off_by_the_end_of_its_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, healthy_client(broker.address):
        for kept in (1, 3, 4, 7, 8, 20, len(send()) - 1):
            async with wire(broker.address) as bad:
                await bad.send(send()[:kept])
                await until(lambda: broker._server.bytes_in_flight > 0)
        await until(lambda: broker._server.bytes_in_flight == 0)
        assert broker.store.max_offset("T", 0) == 0


async def test_a_byte_now_and_then_keeps_no_connection_open(tmp_path: Path) -> None:
    async with running_broker(tmp_path, idle_timeout_s=3) as broker, healthy_client(broker.address):
        async with wire(broker.address) as trickling:
            closed = asyncio.create_task(trickling.is_closed(timeout_s=60))
            for byte in send(b"x" * 1000):
                if closed.done():
                    break
                trickling.writer.write(bytes([byte]))
                await asyncio.sleep(0.1)
            assert await closed
        await until(lambda: len(broker._server.peers) == 1)


TEXTS = ["", "x", "-1", "1000000000", str(1 << 63), "true", "../x", "\x00", "тема", "g" * 300, "{}"]
TOPICS = ["T", "T", "%RETRY%CG", "%DLQ%CG", SCHEDULE_TOPIC, "TBW102", "Unknown", ""]
GROUPS = ["CG", "CG", "TOOLS_CONSUMER", "Unknown", "a b", ""]
NUMBERS = ["0", "1", "3", "-1", "7", "1000000000", str((1 << 31) - 1), str(-(1 << 31))]
BODIES = [b"", b"{", b"[]", b"7", b'{"topic":"T"}', b"\xff\x00", b"a=b\n", b'{"a":' * 2000, b"{}"]
UNSAFE = {25}  # settings: what would be in force afterwards is not what these tests are about


def nonsense(code: int, opaque: int, pick: random.Random) -> bytes:
    """A request with its own fields, and values that are hardly ever right."""
    request = REQUESTS[RequestCode(code)]
    names = [field.encode_name for field in msgspec.structs.fields(request)]
    fields = {name: pick.choice(TEXTS) for name in names if pick.random() < 0.8}
    return framed(code, fields, pick.choice(BODIES), opaque=opaque)


def plausible(code: int, opaque: int, pick: random.Random) -> bytes:
    """A request that can be read, with values that may be anything."""
    fields = {}
    for field in msgspec.structs.fields(REQUESTS[RequestCode(code)]):
        kind, name = str(field.type), field.encode_name
        if "bool" in kind:
            fields[name] = pick.choice(["true", "false"])
        elif "int" in kind:
            fields[name] = pick.choice(NUMBERS)
        elif "opic" in name:
            fields[name] = pick.choice(TOPICS)
        elif "roup" in name:
            fields[name] = pick.choice(GROUPS)
        else:
            fields[name] = pick.choice(TEXTS)
    return framed(code, fields, pick.choice(BODIES), opaque=opaque)


async def test_every_request_with_every_kind_of_nonsense(tmp_path: Path) -> None:
    """All codes that are served, with fields and bodies that nobody means: each is answered."""
    pick = random.Random(7)
    codes = sorted(SERVED - UNSAFE)
    async with running_broker(tmp_path, client_scan_interval_ms=60_000) as broker:
        async with healthy_client(broker.address), wire(broker.address) as bad:
            answered: Counter[int] = Counter()
            for code in codes:
                await bad.send(send() + pull())
                assert {(await bad.answer()).code for _ in range(2)} <= {0, 16, 17, 20, 21, 26, 29}
                for number in range(60):
                    make = plausible if number % 3 else nonsense
                    await bad.send(make(code, number, pick))
                answers = [await bad.answer(timeout_s=30) for _ in range(60)]
                assert {answer.opaque for answer in answers} == set(range(60)), code
                answered.update({answer.code for answer in answers})
            assert answered[0] > len(codes) / 2  # the values are good enough for more than refusals
        await until(lambda: not broker._server.tasks)


async def test_memory_does_not_grow_with_bad_input(tmp_path: Path) -> None:
    """All of it, ten times over: after a first round the process has the size that it keeps."""
    small = [data for name, (data, _) in ALL.items() if len(data) < 300_000 and "Many" not in name]

    async def round_of_all(address: str) -> None:
        for start in range(0, len(small), 20):
            async with wire(address) as bad:
                for data in small[start : start + 20]:
                    await bad.send(data)
                    await bad.answer()
        for data in CLOSING.values():
            async with wire(address) as bad:
                await bad.send(data)
                await bad.is_closed()

    async with running_broker(tmp_path) as broker, healthy_client(broker.address):
        for _ in range(2):
            await round_of_all(broker.address)
        gc.collect()
        before = anonymous_bytes()
        for _ in range(8):
            await round_of_all(broker.address)
        gc.collect()
        assert anonymous_bytes() - before < 16 << 20
        assert len(broker.topics) < 40
        assert len(broker.groups) < 40


async def test_large_heartbeats_do_not_stop_the_others(tmp_path: Path) -> None:
    """16 MiB of JSON take a moment to read, and only that."""
    data, code = HEARTBEATS["as many producer groups as fit a frame"]
    async with running_broker(tmp_path) as broker, healthy_client(broker.address) as healthy:
        await goes_on(healthy)
        healthy.slowest_s = 0.0
        async with wire(broker.address) as bad:
            assert (await bad.ask(data)).code == code
        await goes_on(healthy)
        assert healthy.slowest_s < 20
        assert broker.producers.channel("bad@1") is None


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.nightly)])
def test_mutated_frames_against_a_live_broker(tmp_path: Path, seconds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    report = fuzz.broker.run(seconds, seed, tmp_path)
    assert report.inputs > 2 * seconds


def test_a_healthy_client_notices(caplog: pytest.LogCaptureFixture) -> None:
    """The watcher of all these tests fails when it should."""

    async def scenario() -> None:
        healthy = Healthy("127.0.0.1:1")
        with pytest.raises(Exception, match="cannot connect"):
            await healthy.run()

    asyncio.run(scenario())


async def test_commands_are_what_the_frames_say(tmp_path: Path) -> None:
    """The frames of this file are read as meant, or they would prove nothing."""
    async with running_broker(tmp_path) as broker, wire(broker.address) as client:
        assert (await client.ask(send(b"x"))).code == 0
        assert (await client.ask(framed(10, OLD_SEND, b"x"))).code == 0
        assert (await client.ask(framed(320, BATCH, element(b"x") * 2))).code == 0
        assert (await client.ask(pull())).code == 0
        assert (await client.ask(beat(consumerDataSet=[group("CG")]))).code == 0
        command = RemotingCommand(code=38, opaque=3, fields={"consumerGroup": "CG"})
        assert b"bad@1" in bytes((await client.ask(b"".join(encode(command)))).body)
