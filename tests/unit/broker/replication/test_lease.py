"""The lease of a master counts from its question, by a clock that counts suspension."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.error_replies import metadata_is_copied
from skylark.broker.replication.lease import MasterLease, boot_time
from skylark.broker.replication.role import Role
from skylark.errors import BrokerError, SettingsError
from skylark.settings.broker import BrokerRole, BrokerSettings, GroupSettings
from tests.support.broker import broker_settings


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_held_from_the_question_on() -> None:
    time = Time()
    lease = MasterLease(2000, time)
    assert not lease.holds
    lease.renew(time.now)
    time.now += 1.9
    assert lease.holds
    time.now += 0.2
    assert not lease.holds
    lease.renew(101.0)  # the answer took a second
    assert not MasterLease(2000, Time()).holds
    assert lease.holds
    lease.renew(90.0)  # an answer that was overtaken
    assert lease.holds
    lease.end()
    assert not lease.holds


def test_a_lease_of_0_is_held_for_ever() -> None:
    assert MasterLease(0, Time()).holds


def test_the_clock_never_goes_back() -> None:
    assert boot_time() <= boot_time()


def test_a_master_that_wakes_after_a_pause_is_fenced_at_once(tmp_path: Path) -> None:
    """Without any timer: the first send after the pause is refused."""
    time = Time()
    role = Role(broker_settings(tmp_path))
    role.kind, role.is_alone, role.lease = BrokerRole.SYNC_MASTER, True, MasterLease(2000, time)
    role.lease.renew(time.now)
    role.check_master(metadata_is_copied)
    assert not role.is_fenced
    time.now += 30
    assert role.is_fenced
    with pytest.raises(BrokerError):
        role.check_master(metadata_is_copied)
    role.is_alone = False
    assert not role.is_fenced  # other members must acknowledge, and follow another master by now


def test_a_controller_must_not_elect_while_a_lease_is_held() -> None:
    with pytest.raises(SettingsError, match="masterLeaseMs"):
        GroupSettings(enabled=True, controllers="127.0.0.1:9878", heartbeat_timeout_ms=2000, lease_ms=2000)


def test_controller_mode_needs_controllers_and_chooses_the_master_itself() -> None:
    with pytest.raises(SettingsError, match="controllerAddr"):
        GroupSettings(enabled=True)
    group = GroupSettings(enabled=True, controllers="127.0.0.1:9878")
    settings = BrokerSettings(group=group)
    assert (settings.broker_id, settings.role) == (-1, BrokerRole.SLAVE)
    with pytest.raises(SettingsError, match="controller mode"):
        BrokerSettings(broker_id=-1)
