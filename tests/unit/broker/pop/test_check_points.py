"""Records of the revive topic: the bytes of RocketMQ 5.3.3, and what is read of other writers."""

import pytest

from skylark.broker.pop.check_points import REPUTS_UNKNOWN, Acknowledgement, CheckPoint

POPPED = 1700000000000
CHECK_POINT = CheckPoint("T", "G", 2, 100, [100, 101, 104], POPPED, 60_000, "broker-a")


def test_a_check_point_is_written_as_rocketmq_does() -> None:
    body = (
        b'{"bm":0,"bn":"broker-a","c":"G","d":[0,1,4],"it":60000,"n":3,"pt":1700000000000,"q":2,'
        b'"reviveTime":1700000060000,"ro":0,"so":100,"t":"T"}'
    )
    assert CHECK_POINT.encode() == body
    assert CheckPoint.decode(body, "other") == CHECK_POINT
    assert CHECK_POINT.properties() == {
        "UNIQ_KEY": "T@2@100@G@1700000000000@broker-a@ck",
        "TAGS": "ck",
        "TIMER_DELIVER_MS": "1700000059000",
    }


def test_a_check_point_that_was_put_again_counts_it_as_text() -> None:
    later = CHECK_POINT.reput(101, POPPED + 60_000)
    assert b'"ro":0,"rp":"1","so":101,' in later.encode()
    assert later.revive_time == CHECK_POINT.revive_time + 10_000
    assert CheckPoint.decode(later.encode(), "") == later
    assert CHECK_POINT.reput(101, POPPED).revive_time == CHECK_POINT.revive_time
    many = CHECK_POINT
    for _ in range(40):
        many = many.reput(100, many.revive_time)
    assert many.invisible_time - many.reput(100, 0).invisible_time == 0
    assert many.reput(100, many.revive_time).invisible_time - many.invisible_time == 7_200_000


def test_acknowledgements_are_written_as_rocketmq_does() -> None:
    one = Acknowledgement("T", "G", 2, 100, [101], POPPED, 60_000, "broker-a")
    assert one.encode() == (b'{"ao":101,"bn":"broker-a","c":"G","pt":1700000000000,"q":2,"so":100,"t":"T"}')
    assert one.properties() == {
        "UNIQ_KEY": "T@2@101@G@1700000000000@broker-a@ack",
        "TAGS": "ack",
        "TIMER_DELIVER_MS": "1700000060000",
    }
    many = Acknowledgement("T", "G", 2, 100, [100, 104], POPPED, 60_000, "broker-a")
    assert many.encode() == (
        b'{"ao":-1,"aol":[100,104],"bn":"broker-a","c":"G","pt":1700000000000,"q":2,"so":100,"t":"T"}'
    )
    assert many.properties()["UNIQ_KEY"] == "T@2@-1@G@1700000000000@broker-a@ack"
    assert many.properties()["TAGS"] == "bAck"
    for ack in (one, many):
        read = Acknowledgement.decode(ack.encode(), "")
        assert (read.key, list(read.offsets)) == (CHECK_POINT.key, list(ack.offsets))


def test_what_others_write_is_read() -> None:
    old = CheckPoint.decode(b'{"so":7,"pt":1,"it":2,"n":3,"bm":0,"q":0,"t":"T","c":"G"}', "broker-a")
    assert (list(old.offsets), old.broker_name) == ([7, 8, 9], "broker-a")
    long = b'{"ackOffset":9,"consumerGroup":"G","popTime":1,"queueId":0,"startOffset":7,"topic":"T"}'
    assert Acknowledgement.decode(long, "broker-a").key == old.key
    assert CheckPoint.decode(CHECK_POINT.encode()[:-1] + b',"rp":"x"}', "").reputs == REPUTS_UNKNOWN


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"so":"a"}', CHECK_POINT.encode().replace(b'"t":"T"', b'"t":""')]
)
def test_a_bad_record_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        CheckPoint.decode(body, "")
    with pytest.raises(ValueError):
        Acknowledgement.decode(body, "")
