"""Send a DataFrame of pandas as messages, one per row, and read it back. With polars it is the same call.

Needs servers: `skylark serve`, or set NAMESRV_ADDR; and `pip install 'skylarkmq[arrow]' pandas`.
"""

import os

import pandas as pd
import pyarrow as pa

from skylark import ConsumeFrom, Producer, PullConsumer, PullConsumerSettings, RowsFailed

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-table"
COUNT = 10_000

frame = pd.DataFrame(
    {"id": range(COUNT), "price": [number / 4 for number in range(COUNT)], "kind": "created"}
)
frame["json"] = frame[["id", "price"]].to_json(orient="records", lines=True).splitlines()
# polars: frame = frame.with_columns(json=pl.struct("id", "price").struct.json_encode())

with Producer("example-producers", namesrv=NAMESRV) as producer:
    try:
        sent = producer.send_arrow(frame, TOPIC, body="json", keys="id", tags="kind")
    except RowsFailed as error:  # the other rows are stored
        again = pd.concat([frame.iloc[list(each.rows)] for each in error.result.failed])
        sent = producer.send_arrow(again, TOPIC, body="json", keys="id", tags="kind")
    for each in sent.ranges[:3]:
        print("rows", each, "from offset", each.queue_offset, "of", each.queue)

settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
order = pa.schema([("id", pa.int64()), ("price", pa.float64())])
total = rows = 0
with PullConsumer("example-tables", namesrv=NAMESRV, settings=settings) as consumer:
    consumer.subscribe(TOPIC, "created")
    while rows < COUNT:
        batch = consumer.poll_arrow(columns=["queueOffset"], json=order, timeout_ms=10_000)
        read = batch.to_pandas()  # polars: polars.from_arrow(batch)
        rows += len(read)
        total += read["value"].str["price"].sum()
    consumer.commit()
print(rows, "rows, prices together", total)
