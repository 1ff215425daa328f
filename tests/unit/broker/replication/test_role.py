"""How many slaves a send waits for, what readers may see, and what is told when several things fail."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.master import CombinedAnswer
from skylark.broker.replication.role import Confirmation, Role, SlaveStatus, slaves_required
from skylark.errors import SettingsError
from skylark.settings import BrokerRole, BrokerSettings, ReplicationSettings
from skylark.store.append_result import PutStatus


def settings(**changes: object) -> ReplicationSettings:
    values: dict[str, Any] = {"lag_bytes_max": 1000, **changes}
    return ReplicationSettings(**values)


def test_the_number_makes_the_role() -> None:
    assert Role(BrokerSettings()).kind is BrokerRole.ASYNC_MASTER
    assert Role(BrokerSettings(broker_id=2)).is_slave
    assert Role(BrokerSettings(role=BrokerRole.SYNC_MASTER)).waits_for_slaves
    named = BrokerSettings(replication=ReplicationSettings(slave_of="127.0.0.1:10911"))
    assert (Role(named).broker_id, Role(named).kind) == (1, BrokerRole.SLAVE)
    with pytest.raises(SettingsError, match="a slave needs an id above 0"):
        BrokerSettings(role=BrokerRole.SLAVE)
    with pytest.raises(SettingsError, match="SYNC_MASTER requires broker id 0"):
        BrokerSettings(role=BrokerRole.SYNC_MASTER, broker_id=1)


@pytest.mark.parametrize(
    ("changes", "usable", "required"),
    [
        ({}, 0, 1),  # 4.9: one slave
        ({}, 3, 1),
        ({"in_sync_replicas": 1}, 3, 0),  # 5: the master alone
        ({"in_sync_replicas": 3}, 1, 2),
        ({"in_sync_replicas": 3, "auto_in_sync_replicas": True}, 1, 1),
        ({"in_sync_replicas": 3, "auto_in_sync_replicas": True}, 0, 0),
        ({"in_sync_replicas": 3, "auto_in_sync_replicas": True, "min_in_sync_replicas": 2}, 0, 1),
        ({"in_sync_replicas": 3, "auto_in_sync_replicas": True}, 9, 2),
    ],
)
def test_slaves_required(changes: dict[str, object], usable: int, required: int) -> None:
    assert slaves_required(settings(**changes), usable) == required


def test_readers_wait_for_slaves_that_count() -> None:
    confirmation = Confirmation()
    confirmation.update([], 500, settings())
    assert (confirmation.bound, confirmation.is_enough) == (None, False)
    confirmation.update([300], 500, settings())
    assert (confirmation.bound, confirmation.reached) == (300, 300)
    confirmation.update([400, 350], 500, settings(in_sync_replicas=3))
    assert confirmation.bound == 350
    confirmation.update([400], 1401, settings())  # too far behind
    assert confirmation.bound is None
    confirmation.update([100], 1000, settings())  # another one: what was reached stays reached
    assert confirmation.bound == 350


def test_nothing_is_invisible_for_longer_than_a_send_waits() -> None:
    confirmation = Confirmation()
    confirmation.update([0], 100, settings())
    for now, appended, bound in [
        (0.0, 100, 0),
        (1.0, 200, 0),
        (2.0, 300, 0),
        (3.0, 400, 100),
        (4.5, 500, 200),
    ]:
        confirmation.release(now, appended, 3.0)
        assert confirmation.bound == bound
    confirmation.release(60.0, 600, 3.0)
    assert confirmation.bound == 500


@given(
    st.lists(st.integers(0, 1000), max_size=5),
    st.integers(1, 4) | st.none(),
    st.booleans(),
)
def test_what_is_reached_is_on_as_many_slaves_as_required(
    acknowledged: list[int], in_sync_replicas: int | None, auto: bool
) -> None:
    chosen = settings(in_sync_replicas=in_sync_replicas, auto_in_sync_replicas=auto)
    confirmation = Confirmation()
    confirmation.update(acknowledged, 1000, chosen)
    have = [offset for offset in acknowledged if offset >= confirmation.reached]
    assert confirmation.reached == 0 or len(have) >= confirmation.required
    assert (confirmation.bound is None) == (not 0 < confirmation.required <= len(acknowledged))


def test_sf_080_the_slaves_failure_is_told_last() -> None:
    flush = [PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT]
    slaves = [PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE]
    for flushed, replicated, flush_first in itertools.product(flush, slaves, (True, False)):
        told: list[PutStatus] = []
        combined = CombinedAnswer(told.append)
        steps = [partial(combined.flushed, flushed), partial(combined.replicated, replicated)]
        for step in steps if flush_first else reversed(steps):
            assert told == []
            step()
        assert told == [flushed if replicated is PutStatus.PUT_OK else replicated]


def test_a_slave_knows_how_far_it_is_behind() -> None:
    status = SlaveStatus(position=100, master_offset=150, caught_up_ms=1000)
    assert (status.lag_bytes, status.lag_s(3500)) == (50, 2.5)
    status.position = 150
    assert (status.lag_bytes, status.lag_s(9999)) == (0, 0.0)
