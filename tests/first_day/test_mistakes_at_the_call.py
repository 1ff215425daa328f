"""Mistakes of the first hour are refused where they are made: nothing is stored, no retry is used up."""

from pathlib import Path

from tests.support.first_day import program, serving

MISTAKES = """
import sys
from skylark import Message, Producer, PushConsumer

def handle():
    pass

consumer = PushConsumer("billing", namesrv=sys.argv[1])
producer = Producer("shop", namesrv=sys.argv[1]).start()
mistakes = {
    "a dictionary": lambda: producer.send({"topic": "orders", "id": 42}),
    "text": lambda: producer.send(Message("orders", "text")),
    "two tags": lambda: producer.send(Message("orders", b"x", tags="created || paid")),
    "a level": lambda: producer.send(Message("orders", b"x", delay_level=30)),
    "a comma": lambda: consumer.subscribe("orders", "created, paid"),
    "no argument": lambda: consumer.subscribe("orders")(handle),
    "a class": lambda: consumer.subscribe("orders", listener=Producer),
}
for name, mistake in mistakes.items():
    try:
        mistake()
        print(f"{name}: accepted")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
producer.stop()
"""
SENTENCES = {
    "a dictionary": "BadMessage: expected a skylark.Message, not dict {'topic': 'orders', 'id': 42}; ",
    "text": "BadMessage: message for topic 'orders': the body must be bytes, not str",
    "two tags": "BadMessage: message for topic 'orders': tags 'created || paid': a message has one tag",
    "a level": "BadMessage: message for topic 'orders': delay_level 30 is out of range: use 1 to 18",
    "a comma": "SettingsError: setting subscription of orders: 'created, paid' would be one tag; "
    "separate tags by ||, as in 'created || paid'",
    "no argument": "SettingsError: setting listener: handle() cannot be called with (messages)",
    "a class": "SettingsError: setting listener: must be a function, or an instance of",
}


def test_a_mistake_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        servers.run("topic", "create", "orders")
        with program(tmp_path / "program.log", MISTAKES, servers.namesrv) as started:
            assert started.process.wait(30) == 0, started.text
        said = dict(line.split(": ", 1) for line in started.text.splitlines())
        assert said.keys() == SENTENCES.keys(), started.text
        for name, sentence in SENTENCES.items():
            assert said[name].startswith(sentence), said[name]
        assert servers.run("tail", "orders", "--from", "begin", "--no-follow", "--body") == ""
