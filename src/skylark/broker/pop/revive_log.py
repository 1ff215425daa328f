"""ReviveLog: appends check points and acknowledgements to the revive topic, by way of the timer wheel."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from skylark.broker.delayed.timers import Timers
from skylark.broker.pop.check_points import CheckPoint, PopRecord
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.message import PutMessage, encode_properties
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedRecord, PutStatus, Refused
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)


class ReviveLog:
    """Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        timers: Timers,
        host: bytes,
    ) -> None:
        """`host` is the broker's address as records hold it."""
        self._live = live
        self._clock = clock
        self._store = store
        self._timers = timers
        self._host = host
        self.topic = names.revive_topic(live.current.cluster)
        self.written: Counter[tuple[str, str, str, str]] = Counter()
        """Records by group, topic, kind (CK, ACK) and status."""

    def put(self, records: Sequence[tuple[int, PopRecord]]) -> list[int | None]:
        """Append records to revive queues; return where each ends in the log, None for one not stored."""
        messages: list[PutMessage | None] = [self._message(queue_id, record) for queue_id, record in records]
        results = iter(self._store.append([message for message in messages if message is not None]))
        ends: list[int | None] = []
        for message, (_, record) in zip(messages, records, strict=True):
            result = Refused(PutStatus.MESSAGE_ILLEGAL, "timer") if message is None else next(results)
            kind = "CK" if isinstance(record, CheckPoint) else "ACK"
            self.written[record.group, record.topic, kind, result.status.name] += 1
            if isinstance(result, AppendedRecord):
                ends.append(result.end)
            else:
                log.warning("record of a pop not stored group=%s reason=%s", record.group, result.reason)
                ends.append(None)
        return ends

    def _message(self, queue_id: int, record: PopRecord) -> PutMessage | None:
        now_ms = self._clock.now_ms()
        properties = record.properties()
        message = PutMessage(
            self.topic,
            min(max(queue_id, 0), self._live.current.revive_queues - 1),
            record.encode(),
            encode_properties(properties),
            born_timestamp=now_ms,
            born_host=self._host,
            wait=False,
        )
        try:
            self._timers.admit(message, properties)
        except BrokerError as error:
            log.warning("record of a pop not taken group=%s reason=%s", record.group, error.remark)
            return None
        return message
