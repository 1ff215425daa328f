"""The gate: decides about every request of a server before it is dispatched.

A connection has a visitor, which remembers what its users may do until users or ACLs change. Then a frequent
request costs its signature and a look into a set.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from skylark.auth.audit import AuditLog
from skylark.auth.model import NeededAccess, User, topic
from skylark.auth.rights import ADMINISTRATION, HOT_FIELDS, RECORD_RIGHTS, needed_accesses
from skylark.auth.store import AuthStore
from skylark.clock import Clock
from skylark.errors import BrokerError, NoPermission, RemoteProtocolError
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, TypedCommand
from skylark.protocol.signature import ACCESS_KEY, SignedSend, SigningKey, are_signed, is_signed
from skylark.settings.auth import AuthSettings

log = logging.getLogger(__name__)

FAILURES_WINDOW_S = 10.0
BLOCKED_S = 10.0
ADDRESSES_MAX = 10_000
PASSES_MAX = 64
"""Users that a connection remembers."""
ALLOWED_MAX = 1024
"""Rights of a user that a connection remembers."""
SHORT_SENDS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
"""They need the same rights: `Pub` on the topic."""
SHOWN_CHARS = 4
"""Characters shown of an unknown access key: it may be a secret in the wrong place."""
BAD_SIGNATURE = "check signature failed."
UNREADABLE = "parse authorization context error."


class Throttle:
    """Blocks addresses with too many failed signatures. Times are monotonic seconds."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failures: dict[str, tuple[float, int]] = {}
        """By address: the start of its window, and the failures in it."""
        self._blocked_until: dict[str, float] = {}

    def failed(self, host: str, now: float) -> bool:
        """Count a failure; return whether the address is blocked from now on."""
        if not self._failures_max:
            return False
        start, count = self._failures.pop(host, (now, 0))
        if now - start > FAILURES_WINDOW_S:
            start, count = now, 0
        if count + 1 >= self._failures_max:
            self._blocked_until[host] = now + BLOCKED_S
            _limit(self._blocked_until)
            return True
        self._failures[host] = (start, count + 1)
        _limit(self._failures)
        return False

    def is_blocked(self, host: str, now: float) -> bool:
        until = self._blocked_until.get(host)
        if until is None:
            return False
        if now < until:
            return True
        del self._blocked_until[host]
        return False


def _limit(table: dict[str, Any]) -> None:
    """Forget the oldest address of a full table."""
    if len(table) > ADDRESSES_MAX:
        table.pop(next(iter(table)))


Right = tuple[int, str | None, str | None]
"""A hot request and the values of its HOT_FIELDS."""


class _Pass:
    """What a connection remembers about a user, valid for one version of users and ACLs."""

    __slots__ = ("allowed", "is_free", "key", "sent_to", "signed_until", "user", "version")

    def __init__(self, user: User, key: SigningKey, version: int, *, is_free: bool) -> None:
        """A free user needs no rights."""
        self.user = user
        self.is_free = is_free
        self.key = key
        self.version = version
        self.signed_until = 0.0
        self.allowed: set[Right] = set()
        self.sent_to: set[str] = set()
        """Topics of sends with short field names."""


class Gate:
    """Authenticates and authorizes the requests of a server. Loop thread."""

    def __init__(
        self,
        settings: AuthSettings,
        store: AuthStore,
        clock: Clock,
        audit: AuditLog,
        *,
        cluster: str,
        open_codes: frozenset[int] = frozenset(),
    ) -> None:
        """`cluster` is the server's; `open_codes` need no signature, besides those of the settings."""
        self.store = store
        self.clock = clock
        self.refusals: Counter[str] = Counter()
        """By reason: `anonymous`, `unknown user`, `disabled user`, `signature`, `rights`."""
        self.on_block: Callable[[str], None] = lambda host: None
        """Called with an address whose connections must be closed."""
        self._audit = audit
        self.audit_all = settings.audit_all
        self._cluster = cluster
        self._open_codes = settings.open_numbers | open_codes
        self._unrestricted_codes = settings.unrestricted_numbers | open_codes
        self._authorizes = settings.authorization
        self._signed_s = float(settings.signature_valid_s) if settings.is_stateful else 0.0
        self._throttle = Throttle(settings.failures_max)

    def is_blocked(self, host: str) -> bool:
        """Return whether connections of this address are refused for now."""
        return self._throttle.is_blocked(host, self.clock.monotonic())

    def visitor(self, host: str, address: str) -> Visitor:
        """Return the state of a new connection."""
        return Visitor(self, host, address)

    def check_record(self, command: RemotingCommand, record_topic: str, address: str, host: str) -> None:
        """Check the rights to the topic that a stored message has, of a request that was admitted.

        Raises NoPermission.
        """
        user = self.store.user(command.fields.get(ACCESS_KEY, ""))
        if not self._authorizes or command.code in self._unrestricted_codes:
            return
        if user is not None and user.is_super:
            return
        access = NeededAccess(topic(record_topic), RECORD_RIGHTS[command.code])
        name = "" if user is None else user.name
        refusal = self._denied(name, [access], host)
        if refusal is not None:
            self.note_refusal(command, "rights", refusal, address, access)
            raise NoPermission(ResponseCode.NO_PERMISSION, refusal)

    # --- For visitors ---

    def authenticate(self, command: RemotingCommand, visitor: Visitor) -> _Pass | None:
        """Return the pass of the user who signed a request; None for an open code. Raises NoPermission."""
        if command.code in self._open_codes:
            return None
        fields = command.fields
        name = fields.get(ACCESS_KEY, "").strip()
        if not name:
            raise self._refused(command, "anonymous", "username cannot be null.", visitor)
        found = visitor.passes.get(name)
        if found is None or found.version != self.store.version:
            user = self.store.user(name)
            if user is None:
                self._failed(visitor)
                raise self._refused(command, "unknown user", f"User:{name} is not found.", visitor)
            if not user.is_enabled:
                raise self._refused(command, "disabled user", f"User:{name} is disabled.", visitor)
            is_free = user.is_super or not self._authorizes
            found = _Pass(user, self.store.key(user), self.store.version, is_free=is_free)
        if found.signed_until and self.clock.monotonic() < found.signed_until:
            return found
        if not is_signed(fields, command.body, found.key, command.version):
            self._failed(visitor)
            raise self._refused(command, "signature", BAD_SIGNATURE, visitor)
        if self._signed_s:
            found.signed_until = self.clock.monotonic() + self._signed_s
        if name not in visitor.passes and len(visitor.passes) >= PASSES_MAX:
            visitor.forget()
        visitor.passes[name] = found
        return found

    def authorize(self, command: RemotingCommand, passed: _Pass | None, visitor: Visitor) -> None:
        """Check what a user may. Raises NoPermission."""
        is_restricted = self._authorizes and command.code not in self._unrestricted_codes
        if passed is None:
            if is_restricted:
                raise self._refused(command, "anonymous", "username cannot be null.", visitor)
            return
        if not is_restricted and not passed.is_free:
            return
        hot = HOT_FIELDS.get(command.code)
        right = None
        if hot is not None:
            right = (command.code, command.fields.get(hot[0]), command.fields.get(hot[1]))
            if right in passed.allowed:
                return
        if not passed.is_free:
            self._check_rights(command, passed, visitor)
        if right is not None:
            visitor.remember(passed, right)

    def _check_rights(self, command: RemotingCommand, passed: _Pass, visitor: Visitor) -> None:
        try:
            accesses = needed_accesses(command, self._cluster)
        except RemoteProtocolError:
            raise self._refused(command, "rights", UNREADABLE, visitor) from None
        if accesses is None:
            remark = (
                f"User:{passed.user.name} has no permission for request {command.code}: no right is defined"
            )
            raise self._refused(command, "rights", remark, visitor)
        refusal = self._denied(passed.user.name, accesses, visitor.host)
        if refusal is not None:
            raise self._refused(command, "rights", refusal, visitor, accesses)

    def _denied(self, name: str, accesses: list[NeededAccess], host: str) -> str | None:
        """Return the remark of a refusal; None if all accesses are allowed."""
        acl, source = self.store.acl(name), ipaddress.ip_address(host)
        for access in accesses:
            entry = None if acl is None else acl.deciding(access, source)
            if entry is None or not entry.is_allowed:
                reason = "no matched policies." if entry is None else "the decision is deny."
                return f"User:{name} has no permission to access {access.resource} from {host}, {reason}"
        return None

    def note_success(self, command: RemotingCommand, passed: _Pass | None, visitor: Visitor) -> None:
        """Write administration to the audit log, and everything if that is wanted."""
        if self.audit_all or command.code in ADMINISTRATION:
            name = "" if passed is None else passed.user.name
            self._note(command, "allowed", visitor.address, name)

    def _failed(self, visitor: Visitor) -> None:
        if self._throttle.failed(visitor.host, self.clock.monotonic()):
            log.warning("address blocked host=%s reason=too many failed signatures", visitor.host)
            self.on_block(visitor.host)

    def _refused(
        self,
        command: RemotingCommand,
        reason: str,
        remark: str,
        visitor: Visitor,
        accesses: list[NeededAccess] | None = None,
    ) -> NoPermission:
        self.note_refusal(command, reason, remark, visitor.address, *(accesses or ())[:1])
        return NoPermission(ResponseCode.NO_PERMISSION, remark)

    def note_refusal(
        self,
        command: RemotingCommand,
        reason: str,
        remark: str,
        address: str,
        access: NeededAccess | None = None,
    ) -> None:
        self.refusals[reason] += 1
        name = command.fields.get(ACCESS_KEY, "")
        if self.store.user(name) is None:
            remark, name = remark.replace(name, shown(name)) if name else remark, shown(name)
        self._note(command, "refused", address, name, remark, access)

    def _note(
        self,
        command: RemotingCommand,
        decision: str,
        address: str,
        user: str,
        reason: str = "",
        access: NeededAccess | None = None,
    ) -> None:
        self._audit.add(
            now_ms=self.clock.now_ms(),
            peer=address,
            user=user,
            code=command.code,
            decision=decision,
            reason=reason,
            resource="" if access is None else str(access.resource),
            action="" if access is None else access.action_words,
        )


class Visitor:
    """A connection at the gate."""

    __slots__ = ("_gate", "_senders", "_senders_version", "address", "host", "passes")

    def __init__(self, gate: Gate, host: str, address: str) -> None:
        self.host = host
        self.address = address
        self.passes: dict[str, _Pass] = {}
        """What is remembered, by access key. Failures are not."""
        self._gate = gate
        self._senders: dict[bytes, bytes] = {}
        self._senders_version = -1

    def remember(self, passed: _Pass, right: Right) -> None:
        """Remember what a user may do."""
        if len(passed.allowed) >= ALLOWED_MAX:
            passed.allowed.clear()
            passed.sent_to.clear()
            self._senders.clear()
        passed.allowed.add(right)
        code, topic_name, _ = right
        if code in SHORT_SENDS and topic_name is not None:
            passed.sent_to.add(topic_name)
            if passed.key.states is not None:
                self.senders()[f"{passed.user.name}\n{topic_name}".encode(errors="replace")] = (
                    passed.key.states
                )

    def forget(self) -> None:
        self.passes.clear()
        self._senders.clear()

    def senders(self) -> dict[bytes, bytes]:
        """Return whose sends are allowed if they are signed: `SigningKey.states` by access key and topic.

        The compiled module checks these signatures; all other requests are for `admits` and `refusal`.
        """
        gate = self._gate
        if gate.audit_all:
            return {}
        if self._senders_version != gate.store.version:
            self._senders_version = gate.store.version
            self._senders.clear()
        return self._senders

    def refusal(self, command: RemotingCommand) -> RemotingCommand | None:
        """Return the reply to a request that is refused, None for one that is admitted."""
        gate, fields = self._gate, command.fields
        # Frequent requests of a known user, without the calls below: they are as many as messages.
        passed = self.passes.get(fields.get(ACCESS_KEY, ""))
        if passed is not None and passed.version == gate.store.version and not gate.audit_all:
            hot = HOT_FIELDS.get(command.code)
            if (
                hot is not None
                and (command.code, fields.get(hot[0]), fields.get(hot[1])) in passed.allowed
                and is_signed(fields, command.body, passed.key, command.version)
            ):
                return None
        return self._decide(command)

    def admits(self, commands: list[TypedCommand[SignedSend]]) -> list[bool]:
        """Return which sends are certainly allowed: by a known user, to a topic it sent to before.

        `refusal` decides about all others.
        """
        gate, passes = self._gate, self.passes
        if gate.audit_all:
            return [False] * len(commands)
        version = gate.store.version
        keys = [
            passed.key
            if (passed := passes.get(send.access_key)) is not None
            and passed.version == version
            and send.topic in passed.sent_to
            else None
            for send in [command.request for command in commands]
        ]
        return are_signed(commands, keys)

    def _decide(self, command: RemotingCommand) -> RemotingCommand | None:
        gate = self._gate
        try:
            passed = gate.authenticate(command, self)
            gate.authorize(command, passed, self)
        except BrokerError as error:
            return command.reply(error.code, error.remark)
        gate.note_success(command, passed, self)
        return None


def shown(name: str) -> str:
    """Return an unknown access key, shortened."""
    return name if len(name) <= SHOWN_CHARS else name[:SHOWN_CHARS] + "…"
