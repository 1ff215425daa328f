"""Topics as DataFrames, in a notebook: each `# %%` is a cell. Needs a broker and Java.

Open it in an editor that supports such cells, or convert it with `jupytext --to ipynb`.
NAMESRV_ADDR is the address of the name server.
"""

# %% A session with the format `rocketmq`. On a cluster, or with Connect, nothing else changes.
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from skylark.pipelines.jobs.archive import archive
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.replay import read_delta
from skylark.pipelines.jobs.session import register

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FOLDER = tempfile.TemporaryDirectory()
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()  # 200 are for large clusters
register(spark)

# %% Rows become messages. The sink sends at least once; keys identify duplicates.
orders = spark.range(1000).selectExpr(
    "to_json(named_struct('id', id, 'amount', id % 100)) as body",
    "if(id % 3 = 0, 'paid', 'created') as tags",
    "concat('order-', id) as keys",
)
sink = orders.write.format("rocketmq").mode("append")
sink.options(namesrv=NAMESRV, topic="spark_orders", exactlyOnce="keys").save()

# %% Messages are rows: the decoded body and all metadata.
source = Input(namesrv=NAMESRV, topic="spark_orders")
paid = source.read(spark, tags="paid", decode="json", decodeSchema="id bigint, amount bigint")
paid.select("queueId", "queueOffset", "keys", "value.amount", "storeTimestamp").show(5, truncate=False)

# %% SQL over a topic.
spark.sql(
    f"create or replace temp view orders using rocketmq options (namesrv '{NAMESRV}', topic 'spark_orders')"
)
spark.sql("select tags, count(*) as orders, max(queueOffset) as newest from orders group by tags").show()

# %% A stream that ends at the end of data; started again, it resumes there.
stream = source.read_stream(spark, decode="json", decodeSchema="id bigint, amount bigint", groupId="notebook")
query = (
    stream.groupBy("tags")
    .agg(F.sum("value.amount").alias("amount"))
    .writeStream.outputMode("complete")
    .format("memory")
    .queryName("amounts")
    .option("checkpointLocation", f"{FOLDER.name}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.table("amounts").orderBy("tags").show()

# %% An archive as a Delta table: run the cell again to add new messages.
lake = parse_output(f"delta:{FOLDER.name}/lake")
summary = archive(spark, source, lake, state=Path(FOLDER.name) / "state", once=True)
print("archived:", summary.counts.written)
read_delta(spark, Path(lake.where)).groupBy("dt", "tags").count().orderBy("tags").show()

# %% Stop the session and remove the files.
spark.stop()
FOLDER.cleanup()
