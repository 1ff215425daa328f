"""Test your code with a real broker in the test's process. Needs no servers.

With pytest you need none of this: the fixtures `skylark_namesrv`, `skylark_topic` and `skylark_group` are
there as soon as Skylark is installed, and `skylark_manual_servers` for tests of delays.
"""

from skylark import ConsumeFrom, Message, Producer, PullConsumer, PullConsumerSettings
from skylark.testing import EmbeddedServers, ManualClock


def remind(namesrv: str, text: str) -> None:
    """The code under test: it sends a reminder that is delivered in two hours."""
    with Producer("reminders", namesrv=namesrv) as producer:
        producer.send(Message("reminders", text.encode(), delay_level=18))


def test_a_reminder_comes_after_two_hours() -> None:
    clock = ManualClock()
    with EmbeddedServers(clock=clock) as servers:
        servers.create_topic("reminders")
        remind(servers.namesrv, "water the plants")
        assert servers.message_count("reminders") == 0
        clock.advance(2 * 60 * 60 * 1000)
        settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
        with PullConsumer("test", namesrv=servers.namesrv, settings=settings) as consumer:
            consumer.subscribe("reminders")
            [message] = consumer.poll(timeout_ms=10_000)
        assert message.body == b"water the plants"


if __name__ == "__main__":
    test_a_reminder_comes_after_two_hours()
    print("two hours have passed")
