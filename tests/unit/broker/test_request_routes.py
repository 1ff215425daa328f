"""The table of routes: complete, without a code in two places, and the same on both ports but for pulls."""

from collections import Counter
from pathlib import Path

from skylark.broker import request_routes
from skylark.broker.handlers.served_requests import codes_of
from skylark.broker.request_routes import FAMILIES, NOT_SERVED_HERE, REASONS, SERVED, UNSUPPORTED
from skylark.protocol.codes import RequestCode
from skylark.protocol.connection import HOT_REQUESTS
from tests.unit.broker.handlers.rig import rigged

HOT = {request.code for request in HOT_REQUESTS}


def test_every_request_code_is_served_or_listed_as_unsupported() -> None:
    served = SERVED | HOT
    assert served | UNSUPPORTED == set(RequestCode)
    assert served.isdisjoint(UNSUPPORTED)
    assert SERVED.isdisjoint(HOT)


def test_no_code_is_in_two_tables() -> None:
    counted = Counter(codes_of(*FAMILIES))
    assert [code for code, count in counted.items() if count > 1] == []
    assert SERVED == counted.keys()


def test_what_is_not_served_has_a_reason() -> None:
    assert REASONS.keys() == UNSUPPORTED
    assert all(reason.strip() for reason in REASONS.values())


def test_the_documentation_says_what_is_refused() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    codes_by_reason: dict[str, list[int]] = {}
    for code, reason in sorted(NOT_SERVED_HERE.items()):
        codes_by_reason.setdefault(reason, []).append(code.value)
    for reason, codes in codes_by_reason.items():
        assert f"| {', '.join(map(str, codes))} | {reason} |" in text


async def test_the_fast_port_serves_everything_but_pulls() -> None:
    with rigged() as rig:
        main, fast = rig.broker.main_routes(), rig.broker.fast_routes()
    assert {RequestCode(code) for code in main.keys() - fast.keys()} == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
    assert main.keys() == SERVED | HOT | NOT_SERVED_HERE.keys()


def test_what_waits_is_counted_for_who_serves_it() -> None:
    at_work: dict[int, int] = {
        RequestCode.END_TRANSACTION: 2,
        RequestCode.VIEW_MESSAGE_BY_ID: 1,
        RequestCode.UPDATE_AND_CREATE_TOPIC: 4,
        RequestCode.GET_BROKER_RUNTIME_INFO: 1,
        RequestCode.CONSUMER_SEND_MSG_BACK: 1,
    }
    marks = request_routes.watermarks(at_work, sends=3, pulls=5)
    assert list(marks) == list(request_routes.PROCESSORS)
    assert {name: count for name, count in marks.items() if count} == {
        "send": 4,
        "pull": 5,
        "query_message": 1,
        "transaction": 2,
        "admin": 5,
    }
