"""Java's string hash and Java's JSON, against values and files that Java made."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import BadJson
from skylark.model import java
from skylark.model.java import ObjectKey

QUEUE = ObjectKey({"brokerName": "broker-a", "queueId": 0, "topic": "T"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagC", 2598921),
        ("order", 106006350),
        ("order-created", -392709271),
        ("payment", -786681338),
        ("d", 100),
        ("订单", 1129459),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -2147483648),
        ("TopicTest#C0A8010A3E7018B4AAC24F3B1C2D0000", -1293207984),
        ("TopicTest#order-1001", 1043804929),
        ("TopicTest#user-7", -1964477641),
    ],
)
def test_hash_of_known_texts(text: str, expected: int) -> None:
    assert java.java_hash(text) == expected


def test_hash_can_be_continued() -> None:
    prefix_hash = java.java_hash("TopicTest#")
    assert java.java_hash_from(prefix_hash, "user-7") == -1964477641
    assert java.java_hash_from(prefix_hash, "") == prefix_hash


def test_index_key_hash_is_never_negative() -> None:
    assert java.index_key_hash(-1293207984) == 1293207984
    assert java.index_key_hash(1043804929) == 1043804929
    assert java.index_key_hash(java.java_hash("polygenelubricants")) == 0


def test_a_long_text_takes_time_in_proportion() -> None:
    started = time.process_time()
    java.java_hash("k" * 4_000_000)
    assert time.process_time() - started < 2  # some 40 ms; a quadratic reading would take hours


def test_every_metadata_file_of_a_java_broker_is_read(golden: Path) -> None:
    files = sorted((golden / "java_json" / "config").glob("*.json"))
    assert len(files) == 7
    for file in files:
        value = java.loads(file.read_bytes())
        assert java.loads(java.dumps(value)) == value
        assert java.loads(java.dumps(value, indent=True)) == value


def test_integer_keys_of_a_java_file_are_integers(golden: Path) -> None:
    delays = java.loads((golden / "java_json" / "config" / "delayOffset.json").read_bytes())
    assert delays["offsetTable"] == {1: 10, 2: 1, 3: 2, 4: 1, 18: 0}


def test_files_are_written_as_java_writes_them_when_all_maps_are_sorted(golden: Path) -> None:
    text = (golden / "java_json" / "config" / "messageRequestMode.json").read_bytes()
    assert java.dumps(java.loads(text), indent=True) == text


def test_every_body_of_a_java_peer_is_read_and_written_back(golden: Path) -> None:
    odd = 0
    for line in (golden / "java_json" / "bodies.jsonl").read_text().splitlines():
        body: str = json.loads(line)["body"]
        value = java.loads(body.encode())
        assert java.loads(java.dumps(value)) == value
        try:
            assert value == json.loads(body)
        except json.JSONDecodeError:
            odd += 1
            # Nothing but the order of members and hash maps may differ, so the same characters are there.
            assert sorted(java.dumps(value).decode()) == sorted(body)
    assert odd >= 14


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"a:1",1:"b:2"}', {0: "a:1", 1: "b:2"}),
        ("{-5:1}", {-5: 1}),
        ('{"1":1, 1:2}', {"1": 1, 1: 2}),
        ('{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}', {QUEUE: 12}),
        ("{clientID:'x', _b$1:null}", {"clientID": "x", "_b$1": None}),
        ("""{'it\\'s':'a "quoted" \\n \\u0041'}""", {"it's": 'a "quoted" \n A'}),
        ("[1,,2,]", [1, 2]),
        ('{"a":1,,"b":2,}', {"a": 1, "b": 2}),
        ('{"i":"a\x01b\x02"}', {"i": "a\x01b\x02"}),
        ("{0:[true,false,null,-1.5,2e3,{}]}", {0: [True, False, None, -1.5, 2000.0, {}]}),
        ('{0:"\\ud83d\\ude00 \\"订单\\""}', {0: '\U0001f600 "订单"'}),
        ("\t{\r\n1 : 2 }\n", {1: 2}),
        ("{0:123456789012345678901234567890}", {0: 123456789012345678901234567890}),
    ],
)
def test_the_dialect_is_read(text: str, expected: Any) -> None:
    assert java.loads(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "character 0: expected a value"),
        (b"   ", "character 3: expected a value"),
        (b"\x00", "character 0: unexpected character"),
        (b"{0:1", "character 4: expected ',' or '}'"),
        (b"{0:1 2:3}", "character 5: expected ',' or '}'"),
        (b"{0}", "character 2: expected ':'"),
        (b"[1 2]", "character 3: expected ',' or ']'"),
        (b"{0:1}{", "character 5: text after the end"),
        (b"{0:'abc}", "character 3: unterminated string"),
        (b'{0:"abc}', "character 3: unterminated string"),
        (b'{0:"\\x"}', "character 3: invalid \\escape"),
        (b'{0:"\\ud800"}', "character 3: half of a surrogate pair"),
        (b'{"a":"\xff\xfe"}', "character 6: not UTF-8"),
        (b"{0:NaN}", "character 3: expected a value"),
        (b"{0:1e999}", "character 3: number out of range"),
        (b"{0:12x}", "character 3: unexpected character"),
        (b"{1.5:0}", "character 1: expected a key"),
        (b"{[1]:0}", "character 1: expected a key"),
        (b"{{a:[1]}:0}", "may hold only"),
        (b"{{0:1}:0}", "may hold only"),
        (b"{a:" + b"9" * 401 + b"}", "number of more than 400 characters"),
    ],
)
def test_garbage_is_refused_with_place_and_reason(text: bytes, sentence: str) -> None:
    with pytest.raises(BadJson) as caught:
        java.loads(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b"{0:", b"{{", b"[{0:"])
def test_a_tower_of_brackets_is_refused(unit: bytes) -> None:
    with pytest.raises(BadJson, match="nested deeper than 128"):
        java.loads(unit * 100_000)


def test_the_deepest_nesting_is_read() -> None:
    text = b"{0:" * java.DEPTH_MAX + b"1" + b"}" * java.DEPTH_MAX
    value = java.loads(text)
    assert java.dumps(value) == text


@pytest.mark.parametrize(
    "hostile",
    [b" " * 1_000_000, b"," * 1_000_000, b"'" + b"\\'" * 500_000, b"[" + b"1," * 500_000, b"9" * 1_000_000],
    ids=["space", "commas", "quotes", "numbers", "digits"],
)
def test_hostile_text_takes_time_in_proportion(hostile: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BadJson):
        java.loads(hostile)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": [], "c": {}}}, '{"a":{"c":{},"d":[]},"b":1}'),
        ({10: "x", 9: "y"}, '{9:"y",10:"x"}'),
        ({QUEUE: 12}, '{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}'),
        ({"remark": None, "list": [None, True, 0.0]}, '{"list":[null,true,0.0]}'),
        ({"only": None}, "{}"),
        ({"text": '\x01\x02\n"\\ 订单 \U0001f600'}, '{"text":"\\u0001\\u0002\\n\\"\\\\ 订单 \U0001f600"}'),
        ({"a": 1, 2: 3, QUEUE: 4}, '{{"brokerName":"broker-a","queueId":0,"topic":"T"}:4,2:3,"a":1}'),
        ((1, 2), "[1,2]"),
    ],
)
def test_compact_text_is_what_java_and_go_peers_can_split(value: Any, text: str) -> None:
    assert java.dumps(value).decode() == text


def test_indented_text_is_tabs_and_no_spaces() -> None:
    value = {"offsetTable": {"T@G": {1: 5, 0: 12}}, "list": [{"a": 1}], "none": {}}
    assert java.dumps(value, indent=True).decode() == (
        '{\n\t"list":[{\n\t\t"a":1\n\t}],\n\t"none":{},\n\t"offsetTable":{\n\t\t"T@G":{\n\t\t\t0:12,\n\t\t\t1:5\n\t\t}\n\t}\n}'
    )


@pytest.mark.parametrize("value", [{1.5: 1}, {True: 1}, {None: 1}, {"a": {1, 2}}, {"a": object()}, b"bytes"])
def test_what_has_no_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        java.dumps(value)


def test_an_object_key_is_found_by_an_equal_one() -> None:
    table = java.loads(b'{{"topic":"T","queueId":0,"brokerName":"broker-a"}:7}')
    assert table[QUEUE] == 7
    assert dict(next(iter(table))) == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    assert repr(ObjectKey({"a": 1})) == "ObjectKey({'a': 1})"
