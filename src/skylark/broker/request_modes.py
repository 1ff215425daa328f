"""Pure. How groups shall ask for messages of a topic, as administrators say. Here they can only pull.

Files and masters of Apache RocketMQ may also name POP. That is kept and shown as it is, and no client hears
of it: who asks the broker which queues are its own (code 400) is told to pull them.
"""

from collections.abc import Callable

from skylark.broker.documents import Encode, decode_document, encode_document
from skylark.broker.refusals import full, system_error
from skylark.protocol.bodies import RequestMode, RequestModeTable
from skylark.settings import BrokerSettings
from skylark.settings.live import Live

PULL = "PULL"


class RequestModes:
    """Modes by topic and group; without one, a group pulls."""

    def __init__(self, live: Live[BrokerSettings]) -> None:
        self._live = live
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the file to be written."""
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def set(self, mode: RequestMode) -> None:
        """Raises BrokerError 1 for a mode that is not served, or when there is no room for more."""
        if mode.mode != PULL:
            raise system_error(
                f"mode {mode.mode} is not served by this broker, allowed is {PULL}: its consumers pull"
            )
        limit = self._live.current.groups_max
        if mode.consumer_group not in self._modes.get(mode.topic, {}) and len(self) >= limit:
            raise full("pairs of a topic and a group with a mode", limit)
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.on_change()

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def table(self) -> RequestModeTable:
        return RequestModeTable(
            message_request_mode_map={topic: dict(groups) for topic, groups in self._modes.items()}
        )

    def follow(self, master: RequestModeTable) -> None:
        """Become the same as the master's table."""
        if self._modes != master.message_request_mode_map:
            self._modes = master.message_request_mode_map
            self.on_change()

    def snapshot(self) -> Encode:
        """Return what writes the modes as they are now."""
        table = self.table()
        return lambda: encode_document(table)

    def load(self, data: bytes) -> None:
        """Take messageRequestMode.json. Raises ValueError."""
        self._modes = decode_document(data, RequestModeTable).message_request_mode_map
