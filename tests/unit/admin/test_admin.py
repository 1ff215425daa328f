"""Admin is whole: every code that servers answer has a method or a reason, every method a blocking twin."""

import inspect
import re
from pathlib import Path

import skylark.admin
from skylark.admin import admin
from skylark.broker.request_routes import SERVED
from skylark.namesrv.handlers import ROUTES as NAME_SERVER_ROUTES
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.requests import REQUESTS

CLIENTS_WORK = {
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.CHECK_CLIENT_CONFIG,
    Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.RECALL_MESSAGE,
    Code.QUERY_ASSIGNMENT,
    Code.POP_MESSAGE,
    Code.ACK_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
    Code.BATCH_ACK_MESSAGE,
    Code.POP_LITE_MESSAGE,
    Code.LITE_SUBSCRIPTION_CTL,
}
SERVERS_WORK = {
    Code.REGISTER_BROKER,
    Code.UNREGISTER_BROKER,
    Code.BROKER_HEARTBEAT,
    Code.NOTIFY_BROKER_ROLE_CHANGED,
    Code.QUERY_DATA_VERSION,
    Code.REGISTER_TOPIC_IN_NAMESRV,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_TIMER_CHECK_POINT,
}
"""What brokers ask name servers, slaves their masters, and controllers brokers."""
PARTS = (
    "brokers",
    "topics",
    "groups",
    "lite_topics",
    "clients",
    "offsets",
    "messages",
    "dead_letters",
    "name_servers",
)
ADDRESS = "127.0.0.1:9876"


def requests_of_admin() -> set[Code]:
    """The codes of all requests that the package names."""
    package = Path(skylark.admin.__file__).parent
    words = set(re.findall(r"\w+", "".join(path.read_text() for path in package.glob("*.py"))))
    return {code for code, request in REQUESTS.items() if request.__name__ in words}


def test_everything_that_servers_answer_can_be_asked() -> None:
    served = SERVED | NAME_SERVER_ROUTES.keys()
    missing = served - requests_of_admin() - CLIENTS_WORK - SERVERS_WORK
    assert not missing, sorted(code.name for code in missing)


def test_every_method_has_a_blocking_twin_with_the_same_arguments() -> None:
    waiting, asyncio_face = admin.Admin(namesrv=ADDRESS), admin.AsyncAdmin(namesrv=ADDRESS)
    for part in PARTS:
        inner, outer = getattr(asyncio_face, part), getattr(waiting, part)
        methods = {
            name: method
            for name, method in inspect.getmembers(type(inner), inspect.iscoroutinefunction)
            if not name.startswith("_")
        }
        assert methods
        for name, method in methods.items():
            twin = getattr(type(outer), name)
            assert not inspect.iscoroutinefunction(twin)
            assert inspect.signature(twin) == inspect.signature(method), f"{part}.{name}"
            assert twin.__doc__ == method.__doc__
    assert waiting.name_servers.addresses == (ADDRESS,)


def test_every_operation_says_what_it_does() -> None:
    for part in PARTS:
        kind = type(getattr(admin.AsyncAdmin(namesrv=ADDRESS), part))
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
            assert name.startswith("_") or method.__doc__, f"{part}.{name}"
