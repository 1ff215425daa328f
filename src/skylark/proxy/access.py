"""Authentication and authorization of gRPC calls, with the users and ACLs of a server."""

from __future__ import annotations

import hmac
import ipaddress
import logging
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

from skylark.auth import model
from skylark.auth.gate import Throttle
from skylark.auth.model import Action, NeededAccess, User
from skylark.auth.store import AuthStore, acl_of, user_of
from skylark.clock import Clock
from skylark.errors import RocketMQError, SettingsError
from skylark.protocol.requests.admin import AuthListAcl, AuthListUser
from skylark.proxy.call import AUTHORIZATION, DATE_TIME, Call
from skylark.proxy.cluster import Cluster
from skylark.proxy.schema import ClientType, Code
from skylark.proxy.status import CallRefused
from skylark.settings.auth import AuthSettings

log = logging.getLogger(__name__)

USERS_MS = 5000
"""How late a change of users takes effect in a proxy with copied ones."""
CREDENTIAL = "Credential"
SIGNATURE = "Signature"


def _topic(name: str, *actions: Action) -> NeededAccess:
    return NeededAccess(model.topic(name), frozenset(actions))


def _group(name: str) -> NeededAccess:
    return NeededAccess(model.group(name), frozenset({Action.SUB}))


def _published(request: Any) -> Iterator[NeededAccess]:
    for name in {message.topic.name for message in request.messages}:
        yield _topic(name, Action.PUB)


def _received(request: Any) -> Iterator[NeededAccess]:
    yield _group(request.group.name)
    yield _topic(request.message_queue.topic.name, Action.SUB)


def _heartbeat(request: Any) -> Iterator[NeededAccess]:
    if request.client_type != ClientType.PRODUCER:
        yield _group(request.group.name)


def _telemetry(command: Any) -> Iterator[NeededAccess]:
    if command.WhichOneof("command") != "settings":
        return
    for topic in command.settings.publishing.topics:
        yield _topic(topic.name, Action.PUB)
    if command.settings.HasField("subscription"):
        subscription = command.settings.subscription
        yield _group(subscription.group.name)
        for entry in subscription.subscriptions:
            yield _topic(entry.topic.name, Action.SUB)


def _consumed(request: Any) -> Iterator[NeededAccess]:
    yield _group(request.group.name)
    yield _topic(request.topic.name, Action.SUB)


RIGHTS: dict[str, Callable[[Any], Iterator[NeededAccess]]] = {
    "QueryRoute": lambda request: iter([_topic(request.topic.name, Action.PUB, Action.SUB, Action.GET)]),
    "QueryAssignment": _consumed,
    "SendMessage": _published,
    "RecallMessage": lambda request: iter([_topic(request.topic.name, Action.PUB)]),
    "EndTransaction": lambda request: iter([_topic(request.topic.name, Action.PUB)]),
    "ReceiveMessage": _received,
    "AckMessage": _consumed,
    "ForwardMessageToDeadLetterQueue": _consumed,
    "ChangeInvisibleDuration": lambda request: iter([_group(request.group.name)]),
    "SyncLiteSubscription": _consumed,
    "Heartbeat": _heartbeat,
    "NotifyClientTermination": lambda request: iter(
        [_group(request.group.name)] if request.group.name else []
    ),
    "Telemetry": _telemetry,
}


def parse_authorization(text: str) -> tuple[str, str]:
    """Return user and signature of an authorization header. Raises CallRefused."""
    _, space, rest = text.strip().partition(" ")
    if not space:
        raise _refused("authentication header is incorrect.")
    given = {}
    for pair in rest.split(","):
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise _refused("authentication keyValues length is incorrect, actual length=1.")
        given[name] = value
    return given.get(CREDENTIAL, "").partition("/")[0], given.get(SIGNATURE, "")


def _refused(message: str) -> CallRefused:
    return CallRefused(Code.UNAUTHORIZED, message)


class CallGate:
    """Decides about every call. A signature covers the date only: it shows who calls, not that it is new."""

    def __init__(self, settings: AuthSettings, store: AuthStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._authorizes = settings.authorization
        self._throttle = Throttle(settings.failures_max)

    def admit(self, call: Call, request: Any) -> None:
        """Raises CallRefused."""
        if self._throttle.is_blocked(call.host, self._clock.monotonic()):
            raise _refused("too many failed signatures from this address; wait 10 seconds")
        user = self._authenticate(call)
        if not self._authorizes or user.is_super:
            return
        acl, source = self._store.acl(user.name), ipaddress.ip_address(call.host)
        for access in RIGHTS[call.method](request):
            entry = None if acl is None else acl.deciding(access, source)
            if entry is None or not entry.is_allowed:
                reason = "no matched policies." if entry is None else "the decision is deny."
                raise _refused(
                    f"User:{user.name} has no permission to access {access.resource} from {call.host}, "
                    f"{reason}"
                )

    def _authenticate(self, call: Call) -> User:
        header = call.metadata.get(AUTHORIZATION)
        if header is None:
            raise _refused("username cannot be null.")
        date = call.metadata.get(DATE_TIME)
        if date is None:
            raise _refused("datetime is null.")
        name, signature = parse_authorization(header)
        if not name:
            raise _refused("username cannot be null.")
        user = self._store.user(name)
        if user is None:
            self._throttle.failed(call.host, self._clock.monotonic())
            raise _refused(f"User:{name} is not found.")
        if not user.is_enabled:
            raise _refused(f"User:{name} is disabled.")
        expected = b64decode(self._store.key(user).signature(date.encode())).hex()
        if not hmac.compare_digest(expected.encode(), signature.lower().encode()):
            self._throttle.failed(call.host, self._clock.monotonic())
            raise _refused("check signature failed.")
        return user


class UserCopy:
    """Copies users from the first broker of the cluster. The proxy's credentials must be a super user's."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.store = AuthStore()

    async def load(self) -> None:
        """Copy for the first time. Raises SettingsError, RemotingError, BrokerError."""
        users = await self._cluster.call_any(AuthListUser()) or []
        acls = await self._cluster.call_any(AuthListAcl()) or []
        if not users or any(not user.password for user in users):
            raise SettingsError(
                "authenticationEnabled",
                "the broker shows no users with secrets; give the proxy the credentials of a super user",
            )
        try:
            self.store.replace(map(user_of, users), map(acl_of, acls))
        except ValueError as error:
            raise SettingsError("authenticationEnabled", f"an ACL is not understood: {error}") from None

    async def refresh(self) -> None:
        """Copy again; while that fails, the old users count."""
        try:
            await self.load()
        except RocketMQError as error:
            log.warning("users not refreshed error=%s", error)
