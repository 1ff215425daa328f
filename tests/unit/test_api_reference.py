"""The API reference has every public name, with the signature that a reader calls and a text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import ModuleType

import griffe
import pytest

import skylark
from scripts.api_reference import readable
from skylark import aio, testing

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("api-*.md"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
DOCUMENTED = [name for page in PAGES for name in DIRECTIVE.findall(page.read_text())]
FIXTURES = "skylark.testing.plugin."
PARTS_OF_ADMIN = "skylark.admin.admin."
CLIENTS = ["skylark.Producer", "skylark.TransactionProducer", "skylark.PushConsumer", "skylark.PullConsumer"]
# Methods of asyncio clients that only the client itself calls; mkdocs.yml leaves them out, too.
INTERNAL = {"wait_for", "shorten", "on_connected", "sender", "session", "target", "held", "take_batch"}

pytestmark = pytest.mark.xdist_group("api_reference")  # the package is read once


def public(module: ModuleType) -> set[str]:
    names: list[str] = module.__all__
    return {f"{module.__name__}.{name}" for name in names} - {
        "skylark.__version__",
        "skylark.aio",
        "skylark.errors",
        "skylark.testing",
    }


def test_every_public_name_has_one_place() -> None:
    assert len(DOCUMENTED) == len(set(DOCUMENTED))
    others = (FIXTURES, PARTS_OF_ADMIN)
    assert {name for name in DOCUMENTED if not name.startswith(others)} == (
        public(skylark) | public(aio) | public(testing)
    )


def test_internal_methods_are_left_out() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert f"!^({'|'.join(sorted(INTERNAL))})$" in settings


def test_every_fixture_and_every_part_of_the_admin_has_one() -> None:
    plugin = (ROOT / "src/skylark/testing/plugin.py").read_text()
    fixtures = {f"{FIXTURES}{name}" for name in re.findall(r"^def (skylark_\w+)", plugin, re.MULTILINE)}
    admin = (ROOT / "src/skylark/admin/admin.py").read_text()
    parts = {f"{PARTS_OF_ADMIN}{name}" for name in re.findall(r"^class (\w+)\(_Part", admin, re.MULTILINE)}
    assert fixtures | parts <= set(DOCUMENTED)


@cache
def package() -> griffe.Module:
    extensions = griffe.load_extensions(str(ROOT / "scripts" / "api_reference.py"))
    loaded = griffe.load("skylark", search_paths=[ROOT / "src"], extensions=extensions)
    assert isinstance(loaded, griffe.Module)
    return loaded


def found(name: str) -> griffe.Object:
    member = package()[name.removeprefix("skylark.")]
    return member.final_target if isinstance(member, griffe.Alias) else member


def methods(owner: griffe.Object) -> dict[str, griffe.Function]:
    return {
        name: member
        for name, member in owner.members.items()
        if isinstance(member, griffe.Function) and not name.startswith("_") and name not in INTERNAL
    }


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_name_has_a_text_and_its_methods_have_types(name: str) -> None:
    target = found(name)
    assert target.docstring is not None or name.startswith(PARTS_OF_ADMIN)
    functions = {name: target} if isinstance(target, griffe.Function) else methods(target)
    for function in functions.values():
        assert isinstance(function, griffe.Function)
        assert function.returns is not None, function.path
        for parameter in function.parameters:
            assert parameter.annotation is not None or parameter.name in ("self", "cls"), function.path
    if name.startswith(PARTS_OF_ADMIN) or name in CLIENTS:
        assert [function.path for function in functions.values() if function.docstring is None] == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_with_await_has_the_methods_of_the_blocking_one(name: str) -> None:
    client = found(name.replace("skylark.", "skylark.aio."))
    documented = {name for name, method in methods(client).items() if method.docstring is not None}
    assert methods(found(name)).keys() - documented == ({"submit_request"} if name == CLIENTS[0] else set())


def test_a_blocking_method_has_the_signature_of_the_one_with_await() -> None:
    blocking, original = found("skylark.Producer")["queues"], found("skylark.aio.Producer")["queues"]
    assert (
        str(blocking.signature()) == str(original.signature()) == "queues(topic: str) -> list[MessageQueue]"
    )
    assert ("async" in blocking.labels, "async" in original.labels) == (False, True)


def test_a_message_has_a_constructor_and_settings_have_their_defaults() -> None:
    message = found("skylark.Message")["__init__"]
    assert [parameter.name for parameter in message.parameters][:4] == ["self", "topic", "body", "tags"]
    assert str(found("skylark.Producer")["request"].parameters["timeout_ms"].default) == "3000"
    settings = found("skylark.ProducerSettings")["__init__"]
    assert str(settings.parameters["send_timeout_ms"].default) == "3000"


def test_examples_are_code_and_errors_are_links() -> None:
    text = "Sends.\n\n>>> with x:\n...     send()\n\nRaises BadMessage, not `BadMessage`."
    assert readable(text, re.compile(r"(?<![\w`.])(BadMessage)(?![\w`(])")) == (
        "Sends.\n\n```python\nwith x:\n    send()\n```\n\n"
        "Raises [BadMessage][skylark.BadMessage], not `BadMessage`."
    )
