"""A pre-encoded reply that another thread sends directly on the socket, without a hop over the loop."""

import os
import threading


class OffloopReply:
    """A frame that one other thread may send once, until the loop revokes it.

    The loop revokes it before it sends anything else on the connection and before the connection closes.
    """

    __slots__ = ("_descriptor", "_frame", "_lock", "_sent_bytes")

    def __init__(self, descriptor: int, frame: bytes) -> None:
        """`descriptor` is a non-blocking socket."""
        self._descriptor = descriptor
        self._frame = frame
        self._sent_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_sent(self) -> bool:
        """Whether at least a part was sent, so that no other reply may replace it.

        Waits for a send in progress: the peer may react before the sending thread has recorded it.
        """
        with self._lock:
            return self._sent_bytes > 0

    def send(self) -> None:
        """Send what the socket buffer takes; the loop sends the rest. Called by the other thread.

        Only the first call sends: the thread may call again before the loop has revoked the reply.
        """
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor < 0:
                return
            try:
                self._sent_bytes = os.write(descriptor, self._frame)
            except OSError:
                pass  # buffer full or peer gone: the loop finds out

    def take_back(self) -> bytes:
        """Revoke the frame. Return its unsent rest if a part was sent."""
        with self._lock:
            self._descriptor = -1
            return self._frame[self._sent_bytes :] if self._sent_bytes else b""
