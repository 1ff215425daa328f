"""Send archived messages of a time again, in a notebook: each `# %%` is a cell. Needs a broker and Java.

NAMESRV_ADDR is the address of the name server. docs/howto/replay-last-march.md is the same as a page.
"""

# %% A topic, archived. In reality the lake has done that long ago, and the broker has deleted the messages.
import os
import tempfile
from datetime import UTC, datetime, timedelta

from skylark import Message, Producer
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.jobs.replay import ReplayRange, read_archive, replay
from skylark.pipelines.jobs.session import SessionSettings, session
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import TableArchiver

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FOLDER = tempfile.TemporaryDirectory()
TABLE = parse_output(f"delta:{FOLDER.name}/raw")
with Producer(namesrv=NAMESRV, group="notebook") as producer:
    for number in range(90):
        producer.send(Message("old_orders", b"%d" % number, tags="paid" if number % 3 == 0 else "created"))
table = LakeTable(topics=("old_orders",), output=TABLE)
rules = LakeRules(namesrv=NAMESRV, group="notebook", tables=[table])
print(LakeService([TableArchiver(rules, table, LocalEngine(), "notebook")]).run_once(), "messages")

# %% The time, and which of its messages.
now = datetime.now(UTC)
since, until = (f"{now + timedelta(days=days):%Y-%m-%d}" for days in (-31, 2))
stretch = ReplayRange.parse(since, until, "tags = 'created'", round(now.timestamp() * 1000))

# %% Look at it, then send it to a topic of its own.
with session(SessionSettings()) as spark:
    old = read_archive(spark, TABLE, "old_orders", stretch)
    old.groupBy("tags").count().show()
    summary = replay(spark, old, parse_output("topic:orders_again"), stretch, namesrv=NAMESRV)
print(summary.counts.written, "messages were sent again")
