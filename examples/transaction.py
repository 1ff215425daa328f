"""Deliver a message only if an order was stored.

Needs servers: `skylark serve`, or set NAMESRV_ADDR.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from skylark import Message, ReceivedMessage, TransactionProducer, TransactionState

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-transaction"
DATABASE = Path("orders.db")


def execute(message: Message, order: tuple[int, float]) -> TransactionState:
    """The local transaction. An exception means UNKNOWN, and the broker calls `check` later."""
    number, total = order
    if total < 0:
        return TransactionState.ROLLBACK
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute("INSERT INTO orders VALUES (?, ?)", (number, total))
    return TransactionState.COMMIT


def check(message: ReceivedMessage) -> TransactionState:
    """Return the outcome. Any producer of the group may be asked, also after a restart."""
    with closing(sqlite3.connect(DATABASE)) as database:
        found = database.execute("SELECT 1 FROM orders WHERE number = ?", (message.keys[0],)).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with closing(sqlite3.connect(DATABASE)) as database, database:
    database.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER, total REAL)")

with TransactionProducer("example-shop", execute=execute, check=check, namesrv=NAMESRV) as producer:
    for order in ((1, 9.5), (2, -1.0)):
        message = Message.json(TOPIC, {"order": order[0]}, keys=[str(order[0])])
        result = producer.send_in_transaction(message, order)
        print("order", order[0], result.state.name, result.receipt.message_id)
