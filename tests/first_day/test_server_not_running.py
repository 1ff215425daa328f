"""A program that is started before its server says so in a few lines, and works when the server runs."""

from pathlib import Path

from tests.support.first_day import program, serving

NOBODY = "127.0.0.1:1"
LINES_MAX = 20
"""Of which `asyncio.run` takes nine."""
PROGRAMS = {
    "blocking": """
import sys
from skylark import Message, Producer

with Producer("shop", namesrv=sys.argv[1]) as producer:
    receipt = producer.send(Message.json("orders", {"id": 42}, tags="created"))
    print("sent", receipt.message_id)
""",
    "asyncio": """
import asyncio, sys
from skylark import Message, aio

async def main():
    async with aio.Producer("shop", namesrv=sys.argv[1]) as producer:
        receipt = await producer.send(Message.json("orders", {"id": 42}, tags="created"))
        print("sent", receipt.message_id)

asyncio.run(main())
""",
}


def test_a_program_without_a_server_ends_with_advice_and_then_works(tmp_path: Path) -> None:
    for face, source in PROGRAMS.items():
        with program(tmp_path / f"{face}.log", source, NOBODY) as started:
            assert started.process.wait(30) == 1
        lines = started.text.splitlines()
        assert len(lines) <= LINES_MAX, started.text
        assert lines[0].startswith("Traceback"), "nothing is logged beside it"
        assert lines[-2].endswith(
            f"ConnectFailed: cannot connect to name server {NOBODY}: Connection refused"
        )
        assert lines[-1].startswith("hint: is it running? `skylark serve` starts one here")
    with serving(tmp_path) as servers:
        for face, source in PROGRAMS.items():
            with program(tmp_path / f"{face}-again.log", source, servers.namesrv) as started:
                assert started.process.wait(30) == 0, started.text
                assert started.text.startswith("sent "), "a topic is created by its first message"
        assert (
            len(servers.run("tail", "orders", "--from", "begin", "--no-follow", "--body").splitlines()) == 2
        )
