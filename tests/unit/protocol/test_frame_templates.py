"""The templates of the hot path give the bytes that the real broker sent, and survive any text."""

from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.connection import Connection
from skylark.protocol.frame_templates import SendReplies, plain_reply, pull_reply_head
from skylark.protocol.requests.pull import PullReply
from skylark.protocol.requests.send import SendReply
from tests.unit.protocol.golden_frames import captured


def decode(frame: bytes) -> RemotingCommand:
    [command] = Connection[None]().receive(frame)
    assert isinstance(command, RemotingCommand)
    return command


def test_answers_to_captured_sends_are_the_same_bytes() -> None:
    replies = SendReplies()
    compared = 0
    for frame in captured():
        if frame.kind != "response" or frame.encoding != "JSON" or not frame.asked:
            continue
        fields = frame.header.get("extFields", {})
        if frame.asked.code in (10, 310, 320) and "msgId" in fields:
            if fields.keys() & {"batchUniqId", "recallHandle"}:
                continue
            transaction_id = fields.get("transactionId")
            mine = replies.stored(
                frame.header["opaque"],
                fields["msgId"].encode(),
                int(fields["queueId"]),
                int(fields["queueOffset"]),
                transaction_id=transaction_id and transaction_id.encode(),
                code=frame.code,
                remark=frame.header.get("remark"),
            )
            assert mine == frame.frame
            compared += 1
        elif frame.asked.code in (10, 310, 320) and fields.keys() == {"MSG_REGION", "TRACE_ON"}:
            assert replies.refused(frame.header["opaque"], frame.code, frame.header["remark"]) == frame.frame
            compared += 1
    assert compared > 90


def test_answers_to_captured_pulls_are_the_same_bytes() -> None:
    compared = 0
    for frame in captured():
        if frame.kind != "response" or frame.encoding != "JSON" or not frame.asked:
            continue
        if frame.asked.code in (11, 361) and frame.header.get("extFields"):
            reply = PullReply.from_fields(frame.header["extFields"])
            head = pull_reply_head(
                frame.header["opaque"],
                code=frame.code,
                remark=frame.header["remark"],
                next_begin_offset=reply.next_begin_offset,
                min_offset=reply.min_offset,
                max_offset=reply.max_offset,
                body_bytes=len(frame.body),
                suggest_which_broker_id=reply.suggest_which_broker_id,
            )
            assert head + frame.body == frame.frame
            compared += 1
    assert compared > 90


def test_plain_replies_equal_those_made_of_objects() -> None:
    request = RemotingCommand(code=15, opaque=-5)
    assert plain_reply(-5) == b"".join(encode(request.reply()))
    remark = 'a "quoted" \\ text \x01 ü 漢'
    assert plain_reply(-5, 17, remark) == b"".join(encode(request.reply(17, remark)))


def test_any_text_survives_the_templates() -> None:
    replies = SendReplies(region='50 % "here"', trace_on=False)
    key = 'k"ey\\ %s \x02ü'
    stored = decode(replies.stored(1, b"AB", 2, 3, transaction_id=key.encode(), code=10, remark="%d late"))
    assert SendReply.from_fields(stored.fields) == SendReply(
        "AB", 2, 3, key, region='50 % "here"', trace_on=False
    )
    assert (stored.code, stored.remark) == (10, "%d late")
    broken = decode(replies.stored(1, b"AB", 2, 3, transaction_id=b"\xff\xfe"))
    assert broken.fields["transactionId"] == "��"
    refused = decode(replies.refused(7, 13, 'no "%s"'))
    assert (refused.code, refused.opaque, refused.remark) == (13, 7, 'no "%s"')
    assert refused.fields == {"MSG_REGION": '50 % "here"', "TRACE_ON": "false"}


def test_a_batch_of_many_messages_has_a_long_header() -> None:
    ids = b",".join([b"7F000002000051AF00000000000000F4"] * 1000)
    command = decode(SendReplies().stored(1, ids, 0, 0))
    assert command.fields["msgId"] == ids.decode()
