"""`skylark store`: what it prints for people and for scripts, and what it answers to nonsense."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from skylark.cli import output, store
from skylark.cli.errors import UsageError
from skylark.cli.message_text import STORED_COLUMNS, stored_row
from skylark.cli.store import Selection, SelectionOptions, _names
from skylark.model.message import PutMessage, SystemFlag
from skylark.store.disk import RealDisk
from skylark.store.store_reader import StoreReader
from tests.support.directory import fingerprint, flip
from tests.support.store import message, opened, put_all, small_settings, unpack_golden
from tests.unit.cli.conftest import GEOMETRY, START_MS, Run

GOLDEN_GEOMETRY = ["--index-slots", "500", "--index-items", "2000"]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def numbers(text: str) -> list[int]:
    """The serial numbers of dumped messages, from their keys."""
    return [int(line["properties"]["KEYS"].split()[0].removeprefix("key-")) for line in lines(text)]


# info


def test_info_shows_sizes_topics_and_queues(run: Run, root: Path) -> None:
    result = run("info", root, *GEOMETRY)
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.output.splitlines()]
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    assert facts["state"] == "closed"
    assert facts["store"] == str(root)
    assert "39 in 4 queues" in facts["messages"]
    assert facts["offsets"].endswith("files of 4.0 KiB")
    queues = {(row[0], row[1]): row[2:5] for row in rows if row[0] in ("orders", "payments")}
    assert queues == {
        ("orders", "0"): ["0", "10", "10"],
        ("orders", "1"): ["0", "9", "9"],
        ("payments", "0"): ["0", "10", "10"],
        ("payments", "1"): ["0", "10", "10"],
    }
    assert "Problems" not in result.output
    assert "Not supported" not in result.output


def test_info_as_json(run: Run, root: Path) -> None:
    (root / "abort").write_bytes(b"1")
    document = json.loads(run("info", root, *GEOMETRY, "--json").output)
    assert document["path"] == str(root)
    assert document["running"] is True
    assert document["commit_log"]["file_bytes"] == 4096
    assert document["commit_log"]["end_offset"] > document["commit_log"]["min_offset"] == 0
    assert document["commit_log"]["bytes"] == document["commit_log"]["files"] * 4096
    assert document["commit_log"]["first_timestamp"] == START_MS
    assert document["consume_queues"]["files"] == 4
    assert document["checkpoint"]["durable_offset"] == document["commit_log"]["end_offset"]
    assert [topic["topic"] for topic in document["topics"]] == ["orders", "payments"]
    assert document["topics"][0]["queues"][0] == {
        "queue_id": 0,
        "min_offset": 0,
        "max_offset": 10,
        "first_timestamp": START_MS,
        "last_timestamp": START_MS + 36_000,
    }
    assert document["problems"] == document["unsupported"] == []


def test_info_names_what_is_not_supported_and_what_is_wrong(run: Run, golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    (root / "commitlog" / "notes").write_bytes(b"x")
    result = run("info", root, *GOLDEN_GEOMETRY)
    assert result.exit_code == 0
    assert "Not supported, and left alone:" in result.output
    assert "compaction: logs of compaction topics" in result.output
    assert "timerwheel" not in result.output, "brokers serve timed messages"
    assert "Problems:" in result.output
    assert "notes: its name is not an offset" in result.output


def test_tables_only_on_a_terminal(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "───" not in run("info", root, *GEOMETRY).output
    monkeypatch.setenv("FORCE_COLOR", "1")
    on_terminal = run("info", root, *GEOMETRY).output
    assert "───" in on_terminal
    assert "\x1b[1m" in on_terminal


# verify


def test_verify_of_a_sound_store(run: Run, root: Path) -> None:
    result = run("verify", root, *GEOMETRY)
    assert result.exit_code == 0
    assert "40 records in 2 files, 39 units in 4 queues" in result.output
    assert "The store is sound." in result.output


def test_verify_of_a_damaged_store(run: Run, root: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", 90)
    result = run("verify", root, *GEOMETRY)
    assert result.exit_code == 1
    rows = [line.split("\t") for line in result.output.splitlines() if "\t" in line]
    assert rows[0] == ["what", "file", "byte", "reason"]
    assert rows[1][:3] == ["record", f"commitlog/{0:020d}", "0"]
    assert "2 findings: 1 record, 1 unit-wrong." in result.output


def test_verify_as_json(run: Run, root: Path) -> None:
    document = json.loads(run("verify", root, *GEOMETRY, "--json").output)
    assert document["sound"] is True
    assert document["findings"] == []
    assert document["counts"]["records"] == 40
    flip(root / "commitlog" / f"{0:020d}", 90)
    result = run("verify", root, *GEOMETRY, "--json")
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert document["sound"] is False
    assert document["findings_total"] == 2
    assert document["findings_by_kind"] == {"record": 1, "unit-wrong": 1}
    first = document["findings"][0]
    assert (first["kind"], first["file"], first["offset"]) == (
        "record",
        str(root / "commitlog" / f"{0:020d}"),
        0,
    )
    assert "body CRC" in first["reason"]


def test_verify_of_apaches_crashed_store(run: Run, golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "crash", tmp_path)
    result = run("verify", root, *GOLDEN_GEOMETRY)
    assert result.exit_code == 0
    assert "1 record is not yet in its queue" in result.output
    assert "was not closed" in result.output
    assert "Not supported, and not verified:" in result.output


def test_verify_shows_a_bar_on_a_terminal_only(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("verify", root, *GEOMETRY).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "verifying" in run("verify", root, *GEOMETRY).stderr


def test_verify_with_other_delay_levels(run: Run, tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, delay_levels="7s 8m"), RealDisk()) as store:
        put_all(store, [message("SCHEDULE_TOPIC_XXXX", 1, delay="2")])
    assert "tags code" in run("verify", tmp_path, *GEOMETRY).output
    assert run("verify", tmp_path, *GEOMETRY, "--delay-levels", "7s 8m").exit_code == 0
    wrong = run("verify", tmp_path, "--delay-levels", "soon")
    assert wrong.exit_code == 2
    assert "delay_levels" in wrong.stderr


# dump


def test_dump_shows_the_whole_log_in_order(run: Run, root: Path) -> None:
    result = run("dump", root, "--json")
    assert result.exit_code == 0
    assert numbers(result.output) == list(range(40))
    offsets = [line["physical_offset"] for line in lines(result.output)]
    assert offsets == sorted(offsets)


def test_dump_of_a_topic_goes_queue_by_queue(run: Run, root: Path) -> None:
    dumped = lines(run("dump", root, "-t", "orders", "--json").output)
    assert [line["queue"] for line in dumped] == [0] * 10 + [1] * 9
    assert [line["offset"] for line in dumped] == [*range(10), *range(9)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-t", "orders", "-q", "0", "--from-offset", "3", "--to-offset", "6"], [12, 16, 20]),
        (["-t", "orders", "-q", "0", "--from-offset", "8"], [32, 36]),
        (["-t", "orders", "--to-offset", "1"], [0, 2]),
        (["-t", "orders", "-q", "1", "--limit", "2"], [2, 6]),
        (["--limit", "3"], [0, 1, 2]),
        (["--limit", "0"], []),
        (["--since", str(START_MS + 38_000)], [38, 39]),
        (["--until", str(START_MS + 1000)], [0, 1]),
        (["-t", "payments", "-q", "1", "--since", str(START_MS + 30_000)], [31, 35, 39]),
        (["-t", "payments", "-q", "1", "--until", str(START_MS + 7_000)], [3, 7]),
        (["-t", "payments", "--since", str(START_MS + 3_500), "--until", str(START_MS + 6_000)], [5]),
        (["-t", "payments", "--until", str(START_MS - 1)], []),
        (["-t", "orders", "-k", "key-12"], [12]),
        (["-t", "orders", "-k", "key-13"], []),
        (["-t", "orders", "-k", "third-0", "-q", "1", "--limit", "2"], [6, 18]),
        (["-t", "orders", "-k", "third-0", "--since", str(START_MS + 30_000)], [30, 36]),
        (["-t", "orders", "-k", "third-0", "-q", "0", "--from-offset", "4", "--to-offset", "8"], [24]),
    ],
)
def test_dump_filters(run: Run, root: Path, options: list[str], expected: list[int]) -> None:
    result = run("dump", root, *GEOMETRY, "--json", *options)
    assert result.exit_code == (1 if "-k" in options and not expected else 0), result.output
    assert numbers(result.output) == expected


def test_dump_gives_every_field(run: Run, root: Path) -> None:
    first, *_, last = lines(run("dump", root, "--json").output)
    assert first == {
        "topic": "orders",
        "broker": None,
        "queue": 0,
        "offset": 0,
        "message_id": "7F00000100002A9F0000000000000000",
        "offset_message_id": "7F00000100002A9F0000000000000000",
        "tags": "tag0",
        "keys": ["key-0", "third-0"],
        "physical_offset": 0,
        "size": first["size"],
        "body_crc": zlib.crc32(b"body 0") & 0x7FFFFFFF,
        "properties": {"TAGS": "tag0", "KEYS": "key-0 third-0"},
        "flag": 0,
        "sys_flag": 0,
        "born_ms": 0,
        "born_host": "127.0.0.1:0",
        "stored_ms": START_MS,
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": "body 0",
    }
    assert last["body_base64"] == "/wA="


def test_dump_as_lines_of_tabs(run: Run, root: Path) -> None:
    rows = [line.split("\t") for line in run("dump", root, "-t", "orders", "-q", "0").output.splitlines()]
    assert rows[0] == ["topic", "queue", "offset", "physical", "stored", "size", "tags", "keys", "body"]
    assert [row[2] for row in rows[1:]] == [str(number) for number in range(10)]
    assert rows[1][6:] == ["tag0", "key-0 third-0", "body 0"]


def test_dump_as_a_table(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(store, "ROWS_AT_A_TIME", 15)
    output_lines = run("dump", root).output.splitlines()
    assert len(output_lines) == 42  # one heading for all parts
    assert "body" in output_lines[0]
    assert "key-20" in output_lines[22]


def test_dump_shows_compressed_bodies(run: Run, golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    dumped = lines(run("dump", root, "-t", "TopicCompressed", "--json").output)
    assert {line.get("compression") for line in dumped} == {None, "zlib", "LZ4", "Zstandard"}
    assert {len(line["body"]) for line in dumped} == {4095, 4096, 9000}


def test_dump_tells_of_bodies_that_cannot_be_decompressed(run: Run, tmp_path: Path) -> None:
    with opened(small_settings(tmp_path), RealDisk()) as store:
        put_all(store, [PutMessage("t", 0, b"not zlib", sys_flag=int(SystemFlag.COMPRESSED))])
    line = lines(run("dump", tmp_path, "--json").output)[0]
    assert line["body"] == "not zlib"
    assert "zlib cannot be read" in line["body_error"]
    assert "zlib cannot be read" in run("dump", tmp_path).output


@pytest.mark.parametrize("options", [[], ["-t", "orders"]])
def test_dump_goes_on_behind_damage_and_says_so(run: Run, root: Path, options: list[str]) -> None:
    everything = numbers(run("dump", root, "--json", *options).output)
    flip(root / "commitlog" / f"{0:020d}", 90)
    result = run("dump", root, "--json", *options)
    assert result.exit_code == 1
    assert numbers(result.stdout) == everything[1:]
    assert "body CRC" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# export


def test_export_to_files(run: Run, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "bodies"
    before = fingerprint(root)
    result = run("export", root, "-o", out)
    assert result.exit_code == 0
    assert result.output.startswith("39 messages, ")
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert len(found) == 39
    assert found[f"orders/0/{0:020d}"] == b"body 0"
    assert found[f"payments/1/{9:020d}"] == b"\xff\x00"
    assert fingerprint(root) == before


def test_export_to_lines(run: Run, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "bodies.txt"
    assert run("export", root, "-o", out, "--format", "lines", "-t", "orders", "-q", "0").exit_code == 0
    assert out.read_bytes().splitlines() == [f"body {number}".encode() for number in range(0, 40, 4)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bodies")] == ["bodies.txt"]


def test_export_to_json(run: Run, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "messages.jsonl"
    result = run("export", root, *GEOMETRY, "-o", out, "--format", "json", "-t", "orders", "-k", "third-0")
    assert result.exit_code == 0
    assert numbers(out.read_text()) == [0, 6, 12, 18, 24, 30, 36]


def test_export_decompresses_when_asked(run: Run, golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    options = ["-t", "TopicCompressed"]
    assert run("export", root, "-o", tmp_path / "plain", "-d", *options).exit_code == 0
    assert run("export", root, "-o", tmp_path / "stored", *options).exit_code == 0
    plain = {path.stat().st_size for path in (tmp_path / "plain").rglob("0*") if path.is_file()}
    stored = {path.stat().st_size for path in (tmp_path / "stored").rglob("0*") if path.is_file()}
    assert plain == {4095, 4096, 9000}
    assert min(stored) < 4095
    out = tmp_path / "plain.jsonl"
    assert run("export", root, "-o", out, "-d", "--format", "json", *options).exit_code == 0
    assert {len(line["body"]) for line in lines(out.read_text())} == plain


def test_export_says_what_it_could_not_read(run: Run, root: Path, tmp_path: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", 90)
    result = run("export", root, "-o", tmp_path / "bodies")
    assert result.exit_code == 1
    assert "38 messages" in result.stdout
    assert "1 could not be read" in result.stdout
    assert "body CRC" in result.stderr


def test_export_of_bodies_that_cannot_be_decompressed(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(small_settings(root), RealDisk()) as store:
        bad = PutMessage("t", 0, b"not zlib", sys_flag=int(SystemFlag.COMPRESSED))
        put_all(store, [bad, PutMessage("t", 0, b"good")])
    result = run("export", root, "-d", "-o", tmp_path / "bodies")
    assert result.exit_code == 1
    assert "t/0 at queue offset 0: body compressed with zlib cannot be read" in result.stderr
    assert (tmp_path / "bodies" / "t" / "0" / f"{1:020d}").read_bytes() == b"good"


def test_a_failed_export_leaves_no_half_file(
    run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skylark.admin.message_json.document", interrupt)
    result = run("export", root, "-o", tmp_path / "out", "--format", "json")
    assert result.exit_code == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


# Nonsense: one sentence, exit code 2


@pytest.mark.parametrize(
    ("command", "options", "sentence"),
    [
        ("info", [], ""),
        ("dump", ["-t", "nothing"], "topic nothing is not in the store; it has orders, payments"),
        ("dump", ["-t", "nothing", "-k", "key-1"], "topic nothing is not in the store"),
        ("dump", ["-t", "orders", "-q", "7"], "topic orders has no queue 7; its queues are 0, 1"),
        (
            "dump",
            ["-t", "orders", "-q", "0", "--from-offset", "10"],
            "holds offsets 0 to 9: nothing from 10 on",
        ),
        ("dump", ["-t", "orders", "-q", "0", "--to-offset", "0"], "holds offsets 0 to 9: nothing before 0"),
        ("dump", ["-t", "orders", "--from-offset", "3", "--to-offset", "1"], "3 is not below --to-offset 1"),
        ("dump", ["--from-offset", "3"], "they need --topic"),
        ("dump", ["--since", "soon"], "--since: invalid time 'soon'"),
        (
            "dump",
            ["-t", "orders", "-k", "key-1", "--index-slots", "7"],
            "give its geometry with --index-slots and --index-items",
        ),
        ("dump", ["--index-slots", "0"], "index_slots"),
        ("dump", ["--commit-log", "nowhere"], "nowhere is missing"),
        ("export", ["-o", "nowhere/deep/out"], ": no directory"),
    ],
)
def test_nonsense_is_one_sentence(
    run: Run, root: Path, command: str, options: list[str], sentence: str
) -> None:
    directory = root if options else root / "nothing"
    result = run(command, directory, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("skylark: ")


def test_a_file_is_no_store(run: Run, root: Path) -> None:
    for directory in (root / "checkpoint", root / "consumequeue"):
        result = run("info", directory)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def test_an_empty_queue_is_said_to_be_empty(run: Run, root: Path) -> None:
    for path in (root / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(bytes(200))
    result = run("dump", root, "-t", "orders", "-q", "0")
    assert (result.exit_code, result.stderr) == (2, "skylark: queue orders/0 is empty\n")


def test_the_messages_of_inner_batches_are_shown_one_by_one(run: Run, golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    result = run("dump", root, *GOLDEN_GEOMETRY, "-t", "TopicInnerBatch", "--from-offset", "1", "--json")
    assert result.exit_code == 0
    messages = [json.loads(line) for line in result.output.splitlines()]
    assert [message["offset"] for message in messages] == list(range(1, 7))
    assert [message["body"] for message in messages][:3] == ["inner 1", "inner 2", "single"]


def test_a_key_without_an_index_is_refused(run: Run, root: Path) -> None:
    shutil.rmtree(root / "index")
    result = run("dump", root, "-t", "orders", "-k", "key-2")
    assert result.exit_code == 2
    assert "keys cannot be looked up without an index" in result.stderr


def test_an_export_never_overwrites(run: Run, root: Path, tmp_path: Path) -> None:
    before = fingerprint(root)
    (tmp_path / "there").mkdir()
    for out, sentence in (
        (root / "bodies", "inside the store"),
        (root, "inside the store"),
        (tmp_path / "there", "exists already"),
    ):
        result = run("export", root, "-o", out)
        assert result.exit_code == 2
        assert sentence in result.stderr
    assert fingerprint(root) == before


@pytest.mark.parametrize("layout", ["lines", "json"])
def test_an_export_leaves_what_another_one_is_writing(
    run: Run, root: Path, tmp_path: Path, layout: str
) -> None:
    part = tmp_path / "orders.part"
    part.write_text("half of somebody's work")
    result = run("export", root, "-o", tmp_path / "orders", "--format", layout)
    assert (result.exit_code, "orders.part: File exists" in result.stderr) == (2, True), result.stderr
    assert part.read_text() == "half of somebody's work"


def test_a_topic_of_a_record_cannot_lead_out_of_the_export(run: Run, root: Path, tmp_path: Path) -> None:
    """A record may say anything; here its topic is made a path upwards of the same length."""
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x06orders", b"\x06../../", 1))
    result = run("export", root, "-o", tmp_path / "bodies")
    assert result.exit_code == 1
    assert "cannot be a directory name" in result.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bodies", "store"]


def test_the_dump_streams(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are printed before the last message is read."""
    printed: list[str] = []
    monkeypatch.setattr(store, "ROWS_AT_A_TIME", 5)
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: True))
    monkeypatch.setattr(Console, "print", lambda self, *parts, **options: printed.append("rows"))
    reader = StoreReader(root)
    messages = Selection().messages(reader, printed.append)
    seen_at_read: list[int] = []

    def watched() -> Any:
        for each in messages:
            seen_at_read.append(len(printed))
            yield each

    store._print_table(output.Screen(), STORED_COLUMNS, map(stored_row, watched()))
    assert seen_at_read[0] == 0
    assert seen_at_read[-1] == 7


def parse(**options: Any) -> Selection:
    return SelectionOptions(**options).selection()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": 1}, "--queue needs --topic"),
        ({"key": "k"}, "--key needs --topic"),
        ({"from_offset": 1}, "they need --topic"),
        ({"to_offset": 1}, "they need --topic"),
        ({"topic": "t", "from_offset": 5, "to_offset": 5}, "5 is not below --to-offset 5"),
        ({"since": "soon"}, "--since: invalid time 'soon'"),
        ({"since": "2026-02-02", "until": "2026-01-01"}, "later than --until"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(**options)


def test_what_makes_sense_is_taken() -> None:
    assert parse() == Selection()
    assert parse(topic="t", queue=0, from_offset=0, to_offset=1, limit=0) == Selection("t", 0, 0, 1, limit=0)
    assert parse(since="1700000000000", until="1700000000000").until_ms == 1_700_000_000_000


def test_a_few_names_stand_for_many() -> None:
    assert _names([]) == "none"
    assert _names(["a", "b"]) == "a, b"
    assert _names([str(number) for number in range(9)]) == "0, 1, 2, 3, 4 and 4 more"
