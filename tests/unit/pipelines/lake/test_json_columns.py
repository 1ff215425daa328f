"""Columns of JSON bodies: they grow by new fields, and what does not fit is rejected whole."""

import pyarrow as pa

from skylark.pipelines.lake.json_columns import COLUMNS_MAX, JsonColumns


def rows(columns: JsonColumns, *bodies: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pa.Table.from_pydict(
        columns.decode(pa.array(bodies, pa.binary()))
    ).to_pylist()
    return found


def test_fields_become_columns_and_conflicts_are_rejected() -> None:
    columns = JsonColumns({"id": pa.int64()})
    found = rows(
        columns,
        b'{"id": 1, "amount": 2, "who": {"a": [1]}, "none": null}',
        b'{"id": 2, "amount": 2.5, "ok": true}',
        b'{"id": "three", "amount": 1}',
        b"[1]",
        b"no json",
    )
    assert columns.kinds == {
        "id": pa.int64(),
        "amount": pa.float64(),
        "who": pa.string(),
        "ok": pa.bool_(),
    }
    assert [row["rejects"] for row in found] == [
        None,
        None,
        b'{"id": "three", "amount": 1}',
        b"[1]",
        b"no json",
    ]
    first = {"value_id": 1, "value_amount": 2.0, "value_who": '{"a":[1]}', "value_ok": None, "rejects": None}
    assert found[0] == first
    assert (found[1]["value_ok"], found[2]["value_amount"]) == (True, None)
    [later] = rows(columns, b'{"amount": true}')
    assert later["rejects"] == b'{"amount": true}'


def test_names_that_no_column_may_have_stay_in_the_body() -> None:
    columns = JsonColumns({})
    rows(columns, b'{"a b": 1, "Id": 1, "id": 2, "": 3}')
    assert list(columns.kinds) == ["Id"]
    many = b"{" + b", ".join(b'"f%d": 1' % number for number in range(COLUMNS_MAX + 5)) + b"}"
    rows(columns, many)
    assert len(columns.kinds) == COLUMNS_MAX
