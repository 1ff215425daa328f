"""The how-to pages name only what there is: settings, methods of clients, parts and methods of Admin."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import skylark
from skylark.admin.admin import Admin

PAGES = Path(__file__).parents[3] / "docs" / "howto"
NAMES = ("coming-from-the-java-client", "pull-messages", "administer", "test-your-code", "web-frameworks")
SETTINGS = {
    "ClientSettings": skylark.ClientSettings,
    "ProducerSettings": skylark.ProducerSettings,
    "PushConsumerSettings": skylark.PushConsumerSettings,
    "PullConsumerSettings": skylark.PullConsumerSettings,
}


@pytest.fixture(params=NAMES)
def page(request: pytest.FixtureRequest) -> str:
    return (PAGES / f"{request.param}.md").read_text()


def test_settings_that_a_page_names_exist(page: str) -> None:
    for kind, text in re.findall(rf"({'|'.join(SETTINGS)})\(([^)]*)\)", page):
        known = {spec.name for spec in fields(SETTINGS[kind])}
        assert set(re.findall(r"(\w+)=", text)) <= known, f"{kind}({text})"


def test_operations_of_the_admin_that_a_page_names_exist(page: str) -> None:
    admin = Admin(namesrv="127.0.0.1:9876")
    for part, first, rest in re.findall(r"`admin\.(\w+)(?:\.(\w+)[^`]*)?`((?:, `\.\w+[^`]*`)*)", page):
        for method in [first, *re.findall(r"`\.(\w+)", rest)]:
            assert not method or hasattr(getattr(admin, part), method), f"admin.{part}.{method}"
    for part, method in re.findall(
        r"^\s*(?:\w+ = |print\(|for \w+ in )?admin\.(\w+)\.(\w+)\(", page, re.MULTILINE
    ):
        assert hasattr(getattr(admin, part), method), f"admin.{part}.{method}"


def test_methods_of_clients_that_a_page_names_exist(page: str) -> None:
    consumers = (skylark.PushConsumer, skylark.PullConsumer)
    producers = (skylark.Producer, skylark.TransactionProducer)
    page = re.sub(r"^```java.*?^```", "", page, flags=re.MULTILINE | re.DOTALL).replace("/consumer.py", "")
    for name in re.findall(r"\bconsumer\.(\w+)", page):
        assert any(hasattr(consumer, name) for consumer in consumers), f"consumer.{name}"
    for name in re.findall(r"\bproducer\.(\w+)", page):
        assert any(hasattr(producer, name) for producer in producers), f"producer.{name}"


def test_classes_that_the_java_page_names_are_public() -> None:
    page = (PAGES / "coming-from-the-java-client.md").read_text()
    table = page.partition("## Classes")[2].partition("## Client")[0]
    for row in table.splitlines():
        cells = row.split(" | ")
        if len(cells) == 2 and not cells[0].startswith("| Java"):
            for name in re.findall(r"`([A-Z]\w+)", cells[1]):
                assert hasattr(skylark, name) or hasattr(skylark.errors, name), name
