"""Restores offsets that were committed on slaves while the master was down, before it serves requests."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import SEPARATOR, ConsumerOffsets
from skylark.broker.replication.metadata_sync import METADATA_LIMITS
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import RocketMQError
from skylark.model.names import is_system_group
from skylark.protocol.bodies import ConsumerOffsetTable
from skylark.protocol.requests.offset import GetAllConsumerOffset
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
"""Limit per slave. One that does not answer reports its offsets when it reconnects."""


class OffsetRestoration:
    """Takes offsets of slaves that are ahead of this broker's. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._signer = signer
        self._tls = tls
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    async def run(self, slaves: Iterable[str]) -> None:
        """Ask each slave once. Failures are logged."""
        pool = ConnectionPool(limits=METADATA_LIMITS, signer=self._signer, tls=self._tls)
        try:
            for address in slaves:
                try:
                    table = await pool.call(address, GetAllConsumerOffset(), timeout_s=TIMEOUT_S)
                except (RocketMQError, OSError) as error:
                    log.warning("cannot restore offsets from slave address=%s reason=%s", address, error)
                    continue
                restored = self._restore(table)
                log.info("offsets restored from slave address=%s queues=%d", address, restored)
        finally:
            await pool.close()

    def _restore(self, table: ConsumerOffsetTable) -> int:
        """Commit offsets that are ahead but within this log; return the number of queues."""
        restored, now_ms = 0, self._clock.now_ms()
        for text, queues in self._candidates(table).items():
            topic, _, group = text.partition(SEPARATOR)
            if is_system_group(group) or group not in self._groups or self._topics.get(topic) is None:
                continue
            for queue_id, queue_offset in queues.items():
                known = self._offsets.query(topic, group, queue_id) or 0
                if known < queue_offset <= self._store.max_offset(topic, queue_id):
                    self._offsets.try_commit(topic, group, queue_id, queue_offset, now_ms=now_ms)
                    restored += 1
        return restored

    def _candidates(self, table: ConsumerOffsetTable) -> dict[str, dict[int, int]]:
        """Return the offsets of a slave that this broker may lack.

        After a clean exit these are the ones that clients committed on the slave: it copied the others from
        here, possibly before a reset. After a crash all count, as do those of Apache's slaves, which do not
        report where an offset was committed.
        """
        known = table.offset_table
        if table.stray_offsets is None or not self._store.report.clean_exit:
            return known
        return {
            text: {
                queue_id: known[text][queue_id] for queue_id in queue_ids if queue_id in known.get(text, ())
            }
            for text, queue_ids in table.stray_offsets.items()
        }
