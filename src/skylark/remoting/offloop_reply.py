"""A pre-encoded reply that another thread sends directly on the socket, without a hop over the loop."""

import os
import threading


class OffloopReply:
    """A frame that one other thread may send, once, until the loop takes it back.

    The loop must have done so before it sends anything else on the connection, and before it is closed.
    """

    __slots__ = ("_descriptor", "_frame", "_lock", "_sent_bytes")

    def __init__(self, descriptor: int, frame: bytes) -> None:
        """`descriptor` is a socket that does not block."""
        self._descriptor = descriptor
        self._frame = frame
        self._sent_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_sent(self) -> bool:
        """Whether it was sent, at least in part: then nothing else may stand in its place.

        Waits for a thread that is just sending: the peer may have answered before that thread can say so.
        """
        with self._lock:
            return self._sent_bytes > 0

    def send(self) -> None:
        """Send as much as there is room for. The other thread; what is left is for the loop to send.

        Only the first call sends: the thread may come by again before the loop has taken the answer back.
        """
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor < 0:
                return
            try:
                self._sent_bytes = os.write(descriptor, self._frame)
            except OSError:
                pass  # no room now, or the peer is gone: the loop will find out which

    def take_back(self) -> bytes:
        """End the other thread's turn. Returns the rest of the frame if it was sent in part."""
        with self._lock:
            self._descriptor = -1
            return self._frame[self._sent_bytes :] if self._sent_bytes else b""
