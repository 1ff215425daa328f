"""Many gRPC clients that do nothing: each has a connection with an open Telemetry stream."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from skylark.proxy.schema import SERVICE, ClientType, FilterType, v2
from skylark.remoting.address import split_address

TIMEOUT_S = 30
READ_BYTES = 65_536
EXPIRY_S = 100
"""A server forgets clients without heartbeats after 120 s."""
AT_ONCE = 200
GROUP_SIZE = 20
"""Clients of a group: the members of a group hear of each other."""


class IdleClients:
    """So many simple consumers of a topic, connected inside the context. Raises OSError, TimeoutError."""

    def __init__(self, endpoints: str, topic: str, count: int) -> None:
        self._address = split_address(endpoints)
        self._topic = topic
        self._count = count
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        started = time.monotonic()
        for first in range(0, self._count, AT_ONCE):
            opened = [self._open(number) for number in range(first, min(first + AT_ONCE, self._count))]
            for client, connection in opened:
                self._wait(client, connection)
            if time.monotonic() - started > EXPIRY_S:
                raise TimeoutError(f"{len(self._sockets)} clients took {EXPIRY_S} s: the first would expire")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            each.close()

    def _open(self, number: int) -> tuple[socket.socket, H2Connection]:
        """Open a stream and send settings."""
        connection = H2Connection(H2Configuration(client_side=True))
        connection.initiate_connection()
        connection.send_headers(
            1,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE}/Telemetry"),
                (":authority", "benchmark"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("x-mq-client-id", f"idle@{number}"),
                ("x-mq-language", "JAVA"),
                ("x-mq-client-version", "5.2.0"),
                ("x-mq-protocol", "v2"),
            ],
        )
        data = v2.TelemetryCommand(settings=self._settings(number)).SerializeToString()
        connection.send_data(1, b"\0" + len(data).to_bytes(4, "big") + data)
        client = socket.create_connection(self._address, TIMEOUT_S)
        self._sockets.append(client)
        client.sendall(connection.data_to_send())
        return client, connection

    def _wait(self, client: socket.socket, connection: H2Connection) -> None:
        """Wait for the answer to the settings."""
        while True:
            received = client.recv(READ_BYTES)
            if not received:
                raise ConnectionError(f"{self._address} has hung up")
            if any(isinstance(event, DataReceived) for event in connection.receive_data(received)):
                return

    def _settings(self, number: int) -> object:
        settings = v2.Settings(client_type=ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.name = f"G-idle-{number // GROUP_SIZE}"
        entry = settings.subscription.subscriptions.add(topic=v2.Resource(name=self._topic))
        entry.expression.type = FilterType.TAG
        entry.expression.expression = "*"
        return settings
