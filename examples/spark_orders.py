"""Topics as DataFrames: write orders to a topic, read them back, archive them. Needs a broker and Java.

In a notebook the `# %%` marks are its cells. NAMESRV_ADDR says where the name server is.
"""

# %% A session with our formats: `session` finds Java, sets the workers' Python, and registers.
import os
import tempfile
from pathlib import Path

from skylark.pipelines.jobs.archive import archive
from skylark.pipelines.jobs.places import Input, parse_output
from skylark.pipelines.jobs.replay import read_delta
from skylark.pipelines.jobs.session import SessionSettings, session

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

# %% Rows become messages; the sink is at least once, keys make a second copy recognisable.
with session(SessionSettings(name="orders")) as spark, tempfile.TemporaryDirectory() as folder:
    orders = spark.range(1000).selectExpr(
        "to_json(named_struct('id', id, 'amount', id % 100)) as body",
        "if(id % 3 = 0, 'paid', 'created') as tags",
        "concat('order-', id) as keys",
    )
    sink = orders.write.format("rocketmq").mode("append")
    sink.options(namesrv=NAMESRV, topic="spark_orders", exactlyOnce="keys").save()

    # %% Messages are rows: the body decoded, everything that the broker knows beside it.
    source = Input(namesrv=NAMESRV, topic="spark_orders")
    paid = source.read(spark, tags="paid", decode="json", decodeSchema="id bigint, amount bigint")
    print("paid:", paid.selectExpr("count(*)", "sum(value.amount)").first())

    # %% An archive: run it again and it goes on where it stopped.
    lake = parse_output(f"delta:{folder}/lake")
    summary = archive(spark, source, lake, state=Path(folder) / "state", once=True)
    print("archived:", summary.messages)
    read_delta(spark, lake.path).groupBy("dt", "tags").count().orderBy("tags").show()
