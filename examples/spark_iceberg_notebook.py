"""From a topic to Iceberg, in a notebook: each `# %%` is a cell. Needs a broker, and no JVM.

NAMESRV_ADDR is the address of the name server. The catalog is SQLite in a directory here; another one is
named by PYICEBERG_CATALOG__DEFAULT__URI and its other variables. docs/howto/topic-to-iceberg.md is the
same as a page.
"""

# %% A catalog for trials, and a topic with some orders.
import os
import tempfile

from skylark import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FOLDER = tempfile.TemporaryDirectory()
if "PYICEBERG_CATALOG__DEFAULT__URI" not in os.environ:
    os.environ["PYICEBERG_CATALOG__DEFAULT__TYPE"] = "sql"
    os.environ["PYICEBERG_CATALOG__DEFAULT__URI"] = f"sqlite:///{FOLDER.name}/catalog.db"
    os.environ["PYICEBERG_CATALOG__DEFAULT__WAREHOUSE"] = f"file://{FOLDER.name}/warehouse"
with Producer(namesrv=NAMESRV, group="notebook") as producer:
    for number in range(100):
        producer.send(Message("iceberg_orders", b'{"id": %d}' % number))

# %% The topic as a table.
# `skylark lake run -t iceberg_orders --to iceberg:raw.orders` does the same all the time.
# They read the variables when they are imported.
from pyiceberg.catalog import load_catalog  # noqa: E402

from skylark.pipelines.jobs.endpoints import parse_output  # noqa: E402
from skylark.pipelines.lake_service.engines import LocalEngine  # noqa: E402
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable  # noqa: E402
from skylark.pipelines.lake_service.service import LakeService  # noqa: E402
from skylark.pipelines.lake_service.table_archiver import TableArchiver  # noqa: E402

table = LakeTable(
    topics=("iceberg_orders",), output=parse_output("iceberg:raw.orders", partitionBy="dt,topic")
)
rules = LakeRules(namesrv=NAMESRV, group="notebook", tables=[table])
print(LakeService([TableArchiver(rules, table, LocalEngine(), "notebook")]).run_once(), "messages")

# %% Rows by pyiceberg: only the columns and files that are needed.
stored = load_catalog("default").load_table("raw.orders")
rows = stored.scan(
    row_filter="topic = 'iceberg_orders'", selected_fields=("queueId", "queueOffset", "body")
).to_arrow()
print(rows.num_rows, "messages in", len(stored.snapshots()), "snapshots")
