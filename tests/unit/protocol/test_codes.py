"""The numbers: those that were captured, and the documentation's table of them."""

from pathlib import Path

from skylark.protocol.codes import LanguageCode, RequestCode, ResponseCode
from tests.unit.protocol.golden_frames import captured

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
