"""Restores offsets that were committed on slaves while the master was down, before it serves requests."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from skylark.broker.offsets import SEPARATOR
from skylark.broker.replication.metadata_sync import METADATA_LIMITS
from skylark.broker.state import BrokerState
from skylark.errors import RocketMQError
from skylark.model.names import is_system_group
from skylark.protocol.bodies import ConsumerOffsetTable
from skylark.protocol.requests.offset import GetAllConsumerOffset
from skylark.remoting.connection_pool import ConnectionPool

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
"""A start waits no longer for a slave that does not answer: that one tells what it has when it is back."""


async def restore_offsets(broker: BrokerState, slaves: Iterable[str]) -> None:
    """Take from slaves where their groups are ahead of what is known here. Failures are logged."""
    pool = ConnectionPool(limits=METADATA_LIMITS)
    try:
        for address in slaves:
            try:
                table = await pool.call(address, GetAllConsumerOffset(), timeout_s=TIMEOUT_S)
            except (RocketMQError, OSError) as error:
                log.warning("offsets not taken from the slave address=%s reason=%s", address, error)
                continue
            taken = _take(broker, table)
            log.info("offsets taken from the slave address=%s queues=%d", address, taken)
    finally:
        await pool.close()


def _take(broker: BrokerState, table: ConsumerOffsetTable) -> int:
    """Commit what is ahead, but nothing that this log has not got; returns of how many queues."""
    taken = 0
    for text, queues in _missing(broker, table).items():
        topic, _, group = text.partition(SEPARATOR)
        if is_system_group(group) or group not in broker.groups or broker.topics.get(topic) is None:
            continue
        for queue_id, queue_offset in queues.items():
            known = broker.offsets.query(topic, group, queue_id) or 0
            if known < queue_offset <= broker.store.max_offset(topic, queue_id):
                broker.commit_offset(topic, group, queue_id, queue_offset)
                taken += 1
    return taken


def _missing(broker: BrokerState, table: ConsumerOffsetTable) -> dict[str, dict[int, int]]:
    """What this broker may lack of what a slave has.

    After an orderly end that is what clients committed at the slave. The rest it has from here, and may not
    have heard yet that a group was sent back. After a crash it is all; and of Apache's, which does not say.
    """
    known = table.offset_table
    if table.stray_offsets is None or not broker.store.report.clean_exit:
        return known
    return {
        text: {queue_id: known[text][queue_id] for queue_id in queue_ids if queue_id in known.get(text, ())}
        for text, queue_ids in table.stray_offsets.items()
    }
