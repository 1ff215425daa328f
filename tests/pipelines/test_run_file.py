"""`pipeline.yml`: what it may say, and errors that name the line. No Spark is started."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from skylark.cli.spark_jobs import SparkSessionOptions, chosen_place, session_settings
from skylark.errors import SettingsError
from skylark.pipelines.jobs import run
from skylark.pipelines.jobs.pipeline_file import PipelineFile, load_pipeline

GOOD = """
    name: orders
    source:
      topic: orders
      start: group:earliest
      group: orders-lake
      tags: "Create || Pay"
      limit: {bytes: 64MB}
    steps:
      - decode: {format: json, schema: orders.ddl, on_error: rejects}
      - sql: "select *, to_date(storeTimestamp) dt from input where amount > 0"
      - dedup: {keys: [orderId], within: 10 minutes, time: bornTimestamp}
      - python: enrich.py:enrich
    sinks:
      - delta: {path: lake/orders, partition: [dt], compact: 1h}
      - rocketmq: {topic: orders_clean, keys: orderId, exactlyOnce: keys}
    rejects: {topic: orders_rejects, table: lake/rejects}
    trigger: 10s
    quality:
      - {expect: "orderId is not null", on_fail: reject}
      - {expect: "amount < 1e6", on_fail: warn}
"""


def load(directory: Path, text: str) -> PipelineFile:
    path = directory / "pipeline.yml"
    path.write_text(dedent(text).lstrip("\n"))
    return load_pipeline(path)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("orderId string,\namount double\n")
    pipeline = load(tmp_path, GOOD)
    assert pipeline.name == "orders"
    assert [step.kind for step in pipeline.steps] == ["decode", "sql", "dedup", "python"]
    assert [rule.on_fail for rule in pipeline.quality] == ["reject", "warn"]
    source = run.source_of(pipeline, "127.0.0.1:9876")
    assert source.source_options(is_stream=True) == {
        "namesrv": "127.0.0.1:9876",
        "topic": "orders",
        "groupId": "orders-lake",
        "startingOffsets": "group:earliest",
        "tags": "Create || Pay",
        "maxBytesPerTrigger": "64MB",
    }
    assert run.decoding(pipeline) == {"decode": "json", "decodeSchema": "orderId string, amount double"}
    outputs = run.outputs_of(pipeline)
    assert str(outputs["delta-0"]) == f"delta:{tmp_path / 'lake' / 'orders'}"
    assert outputs["delta-0"].options == {"partitionBy": "dt"}
    assert outputs["rocketmq-1"].options == {"exactlyOnce": "keys"}


MINIMAL = """
    source: {topic: orders}
    sinks:
      - console
"""


def test_little_is_needed(tmp_path: Path) -> None:
    pipeline = load(tmp_path, MINIMAL)
    assert pipeline.name == "pipeline"
    assert pipeline.trigger == "10s"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("", 1, "the file is empty"),
        ("source: {topic: a\nsinks: [console]\n", 2, "invalid YAML"),
        ("source: {topic: a}\n", 1, "missing sinks"),
        (
            "source: {topic: a}\nsinks: [console]\nsink: x\n",
            3,
            "unknown key 'sink' in the file; did you mean sinks?",
        ),
        ("source:\n  start: x\nsinks: [console]\n", 2, "source has no topic"),
        (
            "source:\n  topic: a\n  topics: b\nsinks: [console]\n",
            3,
            "unknown key 'topics' in source; did you mean topic",
        ),
        ("source: {topic: a}\nsinks: []\n", 2, "no sink given"),
        ("source: {topic: a}\nsinks:\n  - kafka: {}\n", 3, "unknown sink 'kafka'; choose from delta"),
        ("source: {topic: a}\nsinks:\n  - delta: {}\n", 3, "delta has no path"),
        ("source: {topic: a}\nsinks:\n  - rocketmq: {tags: x}\n", 3, "rocketmq has no topic"),
        (
            "source: {topic: a}\nsinks:\n  - parquet: {path: x, compact: 1h}\n",
            3,
            "unknown key 'compact' in parquet",
        ),
        ("source: {topic: a}\nsteps:\n  - sql: select 1\nsinks: [console]\n", 3, "must read from `input`"),
        ("source: {topic: a}\nsteps:\n  - dedupe: {}\nsinks: [console]\n", 3, "did you mean dedup?"),
        ("source: {topic: a}\nsteps:\n  - dedup: {}\nsinks: [console]\n", 3, "dedup needs keys"),
        ("source: {topic: a}\nsteps:\n  - python: x.py\nsinks: [console]\n", 3, "file.py:function"),
        (
            "source: {topic: a}\nsteps:\n  - sql: select * from input\n  - decode: {}\nsinks: [console]\n",
            4,
            "decode must be the first step",
        ),
        (
            "source: {topic: a}\nsteps:\n  - decode: {format: xml}\nsinks: [console]\n",
            3,
            "invalid format 'xml'",
        ),
        ("source: {topic: a}\nsinks: [console]\ntrigger: often\n", 3, "invalid duration 'often'"),
        ("source: {topic: a}\nsinks: [console]\nname: !mine x\n", 3, "invalid value 'x'; put it in quotes"),
        ("source: {topic: a}\nsinks: [console]\nname: 2026-13-45\n", 3, "invalid value '2026-13-45'"),
        ("source: {topic: a, limit: {bytes: x}}\nsinks: [console]\n", 1, "invalid size 'x'"),
        ("source: {topic: a}\nsinks: [console]\nquality:\n  - {on_fail: drop}\n", 4, "a rule needs expect"),
        (
            "source: {topic: a}\nsinks: [console]\nquality:\n  - {expect: x, on_fail: weep}\n",
            4,
            "invalid on_fail 'weep'",
        ),
        ("source: {topic: a}\nsinks: [console]\nquality:\n  - {expect: x}\n", 4, "or use on_fail: drop"),
        (
            "source: {topic: a}\nsteps:\n  - decode: {on_error: rejects}\nsinks: [console]\n",
            3,
            "missing rejects; add it, or use on_error: drop",
        ),
        ("source: {topic: a}\nsinks: [console]\nrejects: {}\n", 3, "rejects needs one of topic, table"),
        ("source: {topic: a}\nsinks: [console]\nrejects: {topic: a b}\n", 3, "topic 'a b'"),
        ("source: {topic: a}\nsource: {topic: b}\nsinks: [console]\n", 2, "duplicate key source"),
        ("- source\n", 1, "the file is a list; it must be a mapping"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, line: int, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, text)
    assert refused.value.name == f"{tmp_path / 'pipeline.yml'}:{line}"
    assert sentence in refused.value.reason


@pytest.mark.parametrize(
    ("sink", "sentence"),
    [
        ("rocketmq: {topic: 'no spaces'}", "topic 'no spaces'"),
        (
            "rocketmq: {topic: a, exactlyOnc: keys}",
            "exactlyOnc: unknown option; did you mean",
        ),
        ("delta: {path: lake, codec: rar}", "codec: invalid value 'rar'"),
    ],
)
def test_a_sink_that_cannot_be_is_named_by_its_line(tmp_path: Path, sink: str, sentence: str) -> None:
    pipeline = load(tmp_path, f"source: {{topic: a}}\nsinks:\n  - {sink}\n")
    with pytest.raises(SettingsError) as refused:
        run.outputs_of(pipeline)
    assert f"pipeline.yml:3: {sentence}" in str(refused.value)


def test_an_option_of_the_source_that_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    text = "name: x\nsource: {topic: a, options: {maxTask: 3}}\nsinks: [console]\n"
    with pytest.raises(SettingsError, match=r"pipeline.yml:2: maxTask: unknown option; did"):
        run.source_of(load(tmp_path, text), "127.0.0.1:9876")


def test_a_step_in_python_must_be_there(tmp_path: Path) -> None:
    text = "source: {topic: a}\nsteps:\n  - python: steps.py:enrich\nsinks: [console]\n"
    pipeline = load(tmp_path, text)
    for content, sentence in [
        (None, "no such file"),
        ("def other(df): return df", "has no function enrich"),
        ("import nothing_of_this_name", "cannot import .*: ModuleNotFoundError"),
    ]:
        if content is not None:
            (tmp_path / "steps.py").write_text(content)
        with pytest.raises(SettingsError, match=sentence) as refused:
            run.load_function(pipeline, "steps.py:enrich", 3)
        assert refused.value.name.endswith("pipeline.yml:3")


def test_the_state_lies_in_the_first_table_wherever_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    text = "name: orders\nsource: {topic: orders}\nsinks:\n"
    sink = f"  - delta: {{path: {tmp_path / 'lake'}}}\n"
    states = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        states.append(run.state_of(load(tmp_path / name, f"{text}  - console: {{}}\n{sink}"), None))
    assert states[0] == states[1]
    assert states[0].parent == tmp_path / "lake" / "_skylark" / "state"
    without = [
        run.state_of(load(tmp_path / name, f"{text}  - console: {{}}\n"), None) for name in ("one", "two")
    ]
    assert without[0] != without[1]
    assert without[0].is_relative_to(tmp_path / "home")
    assert run.state_of(load(tmp_path / "one", text + sink), tmp_path / "mine") == tmp_path / "mine"


CLUSTER = """
    source: {topic: orders}
    sinks: [console]
    cluster:
      master: spark://host:7077
      pack: true
      conf: {spark.executor.instances: 2, spark.ui.enabled: false}
"""


def test_submit_takes_the_cluster_of_the_file_unless_the_command_names_another(tmp_path: Path) -> None:
    cluster = load(tmp_path, CLUSTER).cluster
    given = chosen_place(SparkSessionOptions(conf=["spark.executor.instances=3"]), cluster)
    settings = session_settings(given)
    assert (settings.master, settings.pack) == ("spark://host:7077", True)
    assert settings.conf == {"spark.executor.instances": "3", "spark.ui.enabled": "false"}
    other = session_settings(chosen_place(SparkSessionOptions(remote="sc://host"), cluster))
    assert (other.master, other.remote, other.pack) == (None, "sc://host", False)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("{mastr: yarn}", "unknown key 'mastr' in cluster; did you mean master?"),
        ("{pack: often}", "invalid pack 'often'; use true or false"),
        ("{conf: [a]}", "conf is a list; it must be a mapping of Spark settings"),
        ("yarn", "cluster is 'yarn'; it must be a mapping"),
    ],
)
def test_a_wrong_cluster_is_named_by_its_line(tmp_path: Path, part: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=rf"pipeline\.yml:3: .*{re.escape(sentence)}"):
        load(tmp_path, f"source: {{topic: orders}}\nsinks: [console]\ncluster: {part}\n")
