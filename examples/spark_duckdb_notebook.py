"""Query a topic with DuckDB, in a notebook: each `# %%` is a cell. Needs a broker, and no JVM.

NAMESRV_ADDR is the address of the name server. docs/howto/query-with-duckdb.md is the same as a page.
"""

# %% A topic with some orders.
import json
import os
import tempfile

import duckdb
from deltalake import DeltaTable

from skylark import Message, Producer
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import TableArchiver

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FOLDER = tempfile.TemporaryDirectory()
TABLE = f"{FOLDER.name}/raw"
with Producer(namesrv=NAMESRV, group="notebook") as producer:
    for number in range(100):
        order = {"id": number, "amount": number % 10 + 0.5}
        producer.send(Message("duckdb_orders", json.dumps(order).encode(), tags="created"))

# %% The topic as a table. Run this cell again to add what is new.
# `skylark lake run -t duckdb_orders --to delta:DIR` does the same all the time.
table = LakeTable(topics=("duckdb_orders",), output=parse_output(f"delta:{TABLE}"))
rules = LakeRules(namesrv=NAMESRV, group="notebook", tables=[table])
print(LakeService([TableArchiver(rules, table, LocalEngine(), "notebook")]).run_once(), "messages")

# %% Messages are rows.
messages = DeltaTable(TABLE).to_pyarrow_dataset()
print(duckdb.sql("select topic, tags, count(*) as messages from messages group by all"))

# %% Fields of the bodies, which are JSON.
amounts = duckdb.execute(
    "select (decode(body)::json ->> 'amount')::double as amount, count(*) as orders "
    "from messages group by amount order by amount desc limit 3"
).fetchall()
print(amounts)
