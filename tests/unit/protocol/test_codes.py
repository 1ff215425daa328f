"""The numbers: those that were captured, and the documentation's table of them."""

import re
from pathlib import Path

import pytest

from skylark.protocol.codes import LanguageCode, RequestCode, ResponseCode, version_name, version_ordinal
from skylark.protocol.requests import REQUESTS
from tests.unit.protocol.golden_frames import captured

NO_TYPE = "\u2013"
UNKNOWN_ON_PURPOSE = {9999, 3442}  # asked by the probe to see what happens


def test_captured_codes_are_known() -> None:
    for frame in captured():
        known = ResponseCode if frame.kind == "response" else RequestCode
        assert frame.code in set(known) | UNKNOWN_ON_PURPOSE


def test_languages_count_as_java_does() -> None:
    assert [code.value for code in LanguageCode] == list(range(14))


def test_the_documentation_lists_every_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    missing = [code for code in RequestCode if f"| {code.value} | {code.name} |" not in text]
    missing += [code for code in ResponseCode if f"| {code.value} | {code.name} |" not in text]  # type: ignore[misc]
    assert missing == []


def test_the_documentation_names_the_type_of_every_request() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    for code in RequestCode:
        request = REQUESTS.get(code)
        name = (
            f"{request.__module__.rpartition('.')[2]}.{request.__name__}" if request is not None else NO_TYPE
        )
        [row] = [line for line in text.splitlines() if line.startswith(f"| {code.value} | {code.name} |")]
        assert row.split("|")[3].strip(" *`") == name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (62, "62"),
        (211, "211"),
        (212, "V4_0_0_SNAPSHOT"),
        (400, "V4_9_4_SNAPSHOT"),
        (401, "V4_9_4"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (-1, "-1"),
    ],
)
def test_a_release_has_the_name_that_rocketmq_gives_it(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
    if re.fullmatch(r"V\d_\d_\d", name):
        assert version_ordinal(name) == ordinal
