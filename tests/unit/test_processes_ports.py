"""Port reservations."""

import socket

import pytest

from skylark.processes import PORTS, PortReservation


def test_reserved_ports_are_held_together_until_released() -> None:
    ports = PortReservation(-2, 0, 1)
    assert ports.base in PORTS
    for distance in (-2, 0, 1):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports.base + distance))
    ports.release()
    for distance in (-2, 0, 1):
        with socket.socket() as other:
            other.bind(("127.0.0.1", ports.base + distance))


def test_reservations_do_not_overlap() -> None:
    reservations = [PortReservation(-2, 0, 1) for _ in range(20)]
    taken = [reservation.base + distance for reservation in reservations for distance in (-2, 0, 1)]
    for reservation in reservations:
        reservation.release()
    assert len(set(taken)) == len(taken)
