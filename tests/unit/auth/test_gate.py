"""The gate: signatures, rights, throttle, what it remembers, and the audit log."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.auth.access_control import AccessControl
from skylark.auth.audit import AuditLog
from skylark.auth.gate import ADDRESSES_MAX, ALLOWED_MAX, Gate, Throttle
from skylark.auth.model import Acl, AclEntry, Action, Resource, User
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand, TypedCommand
from skylark.protocol.signature import SignedSend, Signer
from skylark.settings.auth import AuthSettings
from skylark.settings.credentials import Credentials
from tests.support.clock import ManualClock

ALICE = Credentials("alice", "alice-secret")
ROOT = Credentials("root", "root-secret")
SEND, PULL, CONFIG = 310, 11, 25


class Rig:
    """A gate with a super user `root` and a user `alice` who may send to `orders`."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        given = AuthSettings(**{"enabled": True, "authorization": True, **settings})
        self.clock = ManualClock()
        self.control = AccessControl(given, directory, self.clock, cluster="C")
        self.store = self.control.store
        self.store.put_user(User("root", ROOT.secret_key, is_super=True))
        self.store.put_user(User("alice", ALICE.secret_key))
        self.allow("Topic:orders", Action.PUB)
        assert self.control.gate is not None
        self.gate: Gate = self.control.gate
        self.visitor = self.gate.visitor("127.0.0.1", "127.0.0.1:1234")

    def allow(self, resource: str, *actions: Action, sources: tuple[str, ...] = ()) -> None:
        parsed = Resource.parse(resource)
        assert parsed is not None
        self.store.put_acl(Acl("alice", (AclEntry(parsed, frozenset(actions), True, sources),)))

    def ask(self, command: RemotingCommand) -> str | None:
        """Return the remark of a refusal, None if the request is admitted."""
        refusal = self.visitor.refusal(command)
        if refusal is None:
            return None
        assert (refusal.code, refusal.opaque) == (ResponseCode.NO_PERMISSION, command.opaque)
        return refusal.remark

    def admits(self, command: RemotingCommand) -> bool:
        """Return whether a send is admitted in its typed form, by itself and beside one that is not."""
        verdicts = self.visitor.admits([typed(command), typed(signed(ALICE, b="never", **FIELDS))])
        assert verdicts == [verdicts[0], False]
        assert self.visitor.admits([typed(command)]) == verdicts[:1]
        return verdicts[0]

    def audit_lines(self) -> list[dict[str, Any]]:
        self.control.close()
        return [msgspec.json.decode(line) for line in self.control.audit.path.read_text().splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def signed(credentials: Credentials, code: int = SEND, body: bytes = b"x", **fields: str) -> RemotingCommand:
    command = RemotingCommand(code=code, opaque=7, version=479, fields=fields, body=body)
    Signer(credentials).sign(command)
    return command


def test_a_signed_request_with_rights_is_admitted(rig: Rig) -> None:
    for _ in range(3):  # the first is decided, the others are remembered
        assert rig.ask(signed(ALICE, b="orders")) is None
    assert rig.ask(signed(ROOT, b="anything")) is None
    assert rig.ask(signed(ROOT, CONFIG)) is None


def test_requests_are_refused_with_rocketmqs_texts(rig: Rig) -> None:
    ask = rig.ask
    assert ask(RemotingCommand(code=SEND, opaque=7, fields={"b": "orders"})) == "username cannot be null."
    assert ask(signed(Credentials("", "x"), b="orders")) == "username cannot be null."
    assert ask(signed(Credentials("bob", "x"), b="orders")) == "User:bob is not found."
    assert ask(signed(Credentials("alice", "wrong"), b="orders")) == "check signature failed."
    unsigned = RemotingCommand(code=SEND, opaque=7, fields={"b": "orders", "AccessKey": "alice"})
    assert ask(unsigned) == "check signature failed."
    denied = "User:alice has no permission to access Topic:other from 127.0.0.1, no matched policies."
    assert ask(signed(ALICE, b="other")) == denied
    rig.store.put_acl(Acl("alice", (AclEntry(Resource.parse("*"), frozenset({Action.ALL}), False),)))  # type: ignore[arg-type]
    denied = "User:alice has no permission to access Topic:orders from 127.0.0.1, the decision is deny."
    assert ask(signed(ALICE, b="orders")) == denied
    rig.store.put_user(User("alice", ALICE.secret_key, is_enabled=False))
    assert ask(signed(ALICE, b="orders")) == "User:alice is disabled."
    assert ask(signed(ALICE, 34, b"not json")) == "User:alice is disabled."


def test_altered_requests_are_refused(rig: Rig) -> None:
    command = signed(ALICE, b="orders", e="1")
    command.body = b"y"
    assert rig.ask(command) == "check signature failed."
    command = signed(ALICE, b="orders", e="1")
    command.fields["e"] = "2"
    assert rig.ask(command) == "check signature failed."
    command = signed(ALICE, b="orders", e="1")
    command.fields["extra"] = "2"
    assert rig.ask(command) == "check signature failed."


def test_a_replayed_request_is_admitted_until_the_secret_changes(rig: Rig) -> None:
    """Signatures have no time and no number: the guide says so, and that TLS protects against listeners."""
    recorded = signed(ALICE, b="orders")
    assert [rig.ask(recorded), rig.ask(recorded)] == [None, None]
    assert rig.visitor.senders()
    rig.store.put_user(User("alice", "another-secret"))
    assert not rig.visitor.senders()
    assert rig.ask(recorded) == "check signature failed."


def test_a_body_that_cannot_be_read_is_refused(rig: Rig) -> None:
    assert rig.ask(signed(ALICE, 34, b"not json")) == "parse authorization context error."


def test_a_code_without_a_row_is_refused_to_all_but_super_users(rig: Rig) -> None:
    assert "no right is defined" in str(rig.ask(signed(ALICE, 999)))
    assert rig.ask(signed(ROOT, 999)) is None


def test_changes_of_users_and_acls_count_at_once(rig: Rig) -> None:
    assert rig.ask(signed(ALICE, b="orders")) is None
    rig.allow("Topic:other", Action.PUB)
    assert rig.ask(signed(ALICE, b="orders")) is not None
    assert rig.ask(signed(ALICE, b="other")) is None
    rig.store.put_user(User("alice", "changed!"))
    assert rig.ask(signed(ALICE, b="other")) == "check signature failed."
    rig.store.remove_user("alice")
    assert rig.ask(signed(ALICE, b="other")) == "User:alice is not found."


def test_a_right_is_remembered_for_its_request_only(rig: Rig) -> None:
    rig.allow("Topic:orders", Action.PUB, Action.SUB)
    assert rig.ask(signed(ALICE, b="orders")) is None
    assert "Group:g" in str(rig.ask(signed(ALICE, PULL, topic="orders", consumerGroup="g")))


def test_sources_are_those_of_the_connection(rig: Rig) -> None:
    rig.allow("Topic:orders", Action.PUB, sources=("10.0.0.0/8",))
    assert "from 127.0.0.1" in str(rig.ask(signed(ALICE, b="orders")))
    other = rig.gate.visitor("10.9.9.9", "10.9.9.9:1")
    assert other.refusal(signed(ALICE, b="orders")) is None


FIELDS: dict[str, Any] = {
    "a": "g", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0", "k": "false",
    "m": "false",
}  # fmt: skip


def typed(command: RemotingCommand) -> TypedCommand[SignedSend]:
    request = SignedSend.from_fields(command.fields)
    return TypedCommand(code=command.code, request=request, body=command.body)


def test_a_typed_send_is_admitted_only_if_an_equal_one_was(rig: Rig) -> None:
    send = signed(ALICE, b="orders", **FIELDS)
    assert not rig.admits(send)
    assert rig.ask(send) is None
    assert rig.admits(send)
    assert not rig.admits(signed(ALICE, b="others", **FIELDS))
    assert rig.admits(signed(ALICE, 320, b="orders", **FIELDS))  # needs the same right
    assert not rig.admits(signed(Credentials("alice", "wrong"), b="orders", **FIELDS))
    send.body = b"y"
    assert not rig.admits(send)
    send.body = b"x"
    rig.allow("Topic:others", Action.PUB)
    assert not rig.admits(send)
    rig.allow("Topic:orders", Action.PUB)
    assert rig.ask(send) is None
    assert rig.admits(send)
    rig.store.put_user(User("alice", "another-secret"))
    assert not rig.admits(send)


def test_what_is_written_to_the_audit_log_is_never_admitted_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path, audit_all=True)
    send = signed(ALICE, b="orders", **FIELDS)
    assert rig.ask(send) is None
    assert not rig.admits(send)


def test_what_a_connection_remembers_is_limited(rig: Rig) -> None:
    rig.allow("Topic:*", Action.PUB)
    for number in range(ALLOWED_MAX + 10):
        assert rig.ask(signed(ALICE, b=f"t{number}")) is None
    assert len(rig.visitor.passes["alice"].allowed) <= ALLOWED_MAX
    for number in range(200):
        name = f"u{number}"
        rig.store.put_user(User(name, "12345678"))
        rig.ask(signed(Credentials(name, "12345678"), 106))
    assert len(rig.visitor.passes) <= 64


def test_without_authorization_every_user_may_do_everything(tmp_path: Path) -> None:
    rig = Rig(tmp_path, authorization=False)
    assert rig.ask(signed(ALICE, CONFIG)) is None
    assert rig.ask(signed(Credentials("alice", "wrong"), CONFIG)) == "check signature failed."


def test_white_lists_open_codes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, open_codes="905, 1008", unrestricted_codes="905,25")
    assert rig.ask(RemotingCommand(code=905, opaque=7)) is None
    assert rig.ask(RemotingCommand(code=1008, opaque=7)) == "username cannot be null."
    assert rig.ask(signed(ALICE, CONFIG)) is None
    assert rig.ask(RemotingCommand(code=CONFIG, opaque=7)) == "username cannot be null."


def test_the_stateful_strategy_checks_a_connection_once_a_minute(tmp_path: Path) -> None:
    strategy = "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"
    rig = Rig(tmp_path, strategy=strategy)
    wrong = signed(Credentials("alice", "wrong"), b="orders")
    assert rig.ask(wrong) == "check signature failed."  # failures are not remembered
    assert rig.ask(signed(ALICE, b="orders")) is None
    assert rig.ask(wrong) is None
    rig.clock.advance(61_000)
    assert rig.ask(wrong) == "check signature failed."


def test_an_address_that_guesses_is_blocked_for_a_while(rig: Rig) -> None:
    blocked: list[str] = []
    rig.gate.on_block = blocked.append
    for _ in range(9):
        rig.ask(signed(Credentials("alice", "guess"), b="orders"))
    assert not rig.gate.is_blocked("127.0.0.1")
    rig.ask(signed(Credentials("bob", "guess"), b="orders"))
    assert blocked == ["127.0.0.1"]
    assert rig.gate.is_blocked("127.0.0.1")
    assert not rig.gate.is_blocked("127.0.0.2")
    rig.clock.advance(10_100)
    assert not rig.gate.is_blocked("127.0.0.1")


def test_slow_failures_and_refused_rights_block_nobody(rig: Rig) -> None:
    for _ in range(30):
        rig.ask(signed(Credentials("alice", "guess"), b="orders"))
        rig.ask(signed(ALICE, b="other"))
        rig.ask(RemotingCommand(code=SEND))
        rig.clock.advance(1200)
    assert not rig.gate.is_blocked("127.0.0.1")


def test_the_throttle_remembers_a_limited_number_of_addresses() -> None:
    throttle = Throttle(2)
    for number in range(ADDRESSES_MAX + 50):
        throttle.failed(f"host{number}", 0.0)
    assert len(throttle._failures) == ADDRESSES_MAX
    assert not Throttle(0).failed("host", 0.0)


def test_the_audit_log_has_refusals_and_administration_without_secrets(rig: Rig) -> None:
    rig.ask(signed(ALICE, b="orders"))
    rig.ask(signed(ALICE, b="other"))
    rig.ask(signed(Credentials("my-secret-as-name", "x"), b="orders"))
    rig.ask(signed(ROOT, 3001, username="new"))
    rig.ask(signed(ROOT, 26))
    lines = rig.audit_lines()
    assert [(line["user"], line["code"], line["decision"]) for line in lines] == [
        ("alice", SEND, "refused"),
        ("my-s…", SEND, "refused"),
        ("root", 3001, "allowed"),
    ]
    assert (lines[0]["resource"], lines[0]["action"]) == ("Topic:other", "Pub")
    assert lines[0]["peer"] == "127.0.0.1:1234"
    text = rig.control.audit.path.read_text()
    for secret in ("secret-as-name", ALICE.secret_key, ROOT.secret_key, "Signature"):
        assert secret not in text
    assert rig.control.audit.path.stat().st_mode & 0o777 == 0o600
    assert rig.gate.refusals == {"rights": 1, "unknown user": 1}


def test_the_audit_log_has_everything_on_demand(tmp_path: Path) -> None:
    rig = Rig(tmp_path, audit_all=True)
    rig.ask(signed(ALICE, b="orders"))
    assert [(line["request"], line["decision"]) for line in rig.audit_lines()] == [
        ("SEND_MESSAGE_V2", "allowed")
    ]


def test_the_audit_log_is_limited_in_size(tmp_path: Path) -> None:
    for _ in range(10):
        audit = AuditLog(tmp_path / "audit.log", bytes_max=5000)
        for number in range(20):
            audit.add(now_ms=number, peer="p", user="u", code=310, decision="refused", reason="r" * 50)
        audit.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]
    assert all(path.stat().st_size <= 5000 for path in tmp_path.iterdir())
