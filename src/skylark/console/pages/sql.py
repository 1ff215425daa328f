"""SQL over topics, store files and tables of the lake."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

from skylark.console import drawings
from skylark.console.grid import Grid, GridColumn
from skylark.console.sql import MESSAGES, SqlAnswer, rows_of
from skylark.console.view import Ask, BadForm, PageView
from skylark.errors import RocketMQError

NUMBERS = ("BIGINT", "DOUBLE", "FLOAT", "INTEGER", "HUGEINT", "UBIGINT", "SMALLINT", "TINYINT")
TIMES = ("TIMESTAMP", "DATE")
BARS_MAX = 40
EXAMPLE = """select tags, count(*) as messages, max(storeTimestamp) as newest
from {table}
group by tags
order by messages desc"""


async def answered(ask: Ask, query: str) -> SqlAnswer:
    """The answer, or a sentence why there is none. Raises BadForm if bodies are hidden."""
    if ask.settings.hide_bodies:
        raise BadForm(ask.t("sql.hidden"))
    look = await ask.look()
    messages = ask.number("messages", MESSAGES)
    try:
        return await ask.console.sql.run(query, ask.admin, look.inventory.topics, messages)
    except (RocketMQError, OSError) as error:
        return SqlAnswer(error=str(error))


async def show(ask: Ask) -> PageView:
    """The form with the tables, and the answer to the query of the address."""
    look = await ask.look()
    hidden = look.inventory.system_topics
    topics = [name for name in look.inventory.topics if name not in hidden and not name.startswith("%")]
    query = ask.arg("q")
    found = await answered(ask, query) if query else SqlAnswer()
    rows = [{name: _cell(value) for name, value in row.items()} for row in rows_of(found)]
    kinds = [kind for _, kind in found.columns]
    names = list(rows[0]) if rows else [name for name, _ in found.columns]
    columns = [
        GridColumn(name, "number" if kind in NUMBERS else "code")
        for name, kind in zip(names, kinds, strict=True)
    ]
    drawn, axes = _drawn(ask, {column.key: kind for column, kind in zip(columns, kinds, strict=True)}, rows)
    tables = [table.text for table in await asyncio.to_thread(ask.console.sql.tables, topics)]
    example = EXAMPLE.format(table=tables[0] if tables else "orders")
    count = f"{len(rows):,}"
    return PageView(
        template="sql.html",
        nav="sql",
        title=ask.t("sql"),
        sentence=ask.t("sql.sentence", messages=f"{ask.number('messages', MESSAGES):,}"),
        grids=(Grid("answer", columns, rows),) if found.columns else (),
        data={
            "query": query or example,
            "tables": tables,
            "drawn": drawn,
            "axes": axes,
            "error": found.error,
            "answer": ask.t("sql.more" if found.has_more else "sql.rows", count=count) if query else "",
            "read": ask.t("sql.read", notes=", ".join(found.notes)) if found.notes else "",
        },
        document={"error": found.error} if found.error else {"rows": rows, "has_more": found.has_more},
        code=(
            (
                "skylark",
                f'skylark spark sql "{query or example}" -t orders --namesrv {ask.connection.namesrv}',
            ),
        ),
        status=400 if found.error else 200,
    )


def _drawn(
    ask: Ask, kinds: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> tuple[Markup, list[tuple[str, str, list[str]]]]:
    """A drawing of two columns, and the choice: a curve over time, or a bar for each row.

    The address may name them, `x` and `y`; without it the first column, and the first other one of numbers.
    """
    x = ask.arg("x") if ask.arg("x") in kinds else next(iter(kinds), "")
    numbers = [name for name, kind in kinds.items() if kind in NUMBERS]
    y = ask.arg("y") if ask.arg("y") in numbers else next((name for name in numbers if name != x), "")
    pairs = [(row[x], row[y]) for row in rows if y and row[x] is not None and row[y] is not None]
    if len(pairs) < 2:
        return Markup(""), []
    title = f"{y} / {x}"
    if kinds[x] in TIMES:
        points = sorted((_time_ms(at), float(value)) for at, value in pairs)
        drawn = drawings.chart([(y, points)], title=title)
    else:
        words = [x] if ask.arg("x") else [name for name, kind in kinds.items() if kind not in NUMBERS] or [x]
        named = [(" · ".join(str(row[word]) for word in words), row[y]) for row in rows if row[y] is not None]
        drawn = drawings.bars(named[:BARS_MAX], title=f"{y} / {', '.join(words)}")
    return drawn, [("x", x, list(kinds)), ("y", y, numbers)]


def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _cell(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
