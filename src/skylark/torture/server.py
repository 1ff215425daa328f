"""A server process of a torture run; the broker's disk can be slowed down.

python -m skylark.torture.server namesrv JSON          (settings, by either of their names)
python -m skylark.torture.server controller JSON
python -m skylark.torture.server broker JSON KNOB
"""

from __future__ import annotations

import logging
import random
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from skylark import embedded
from skylark.broker.broker import Broker
from skylark.controller import controller
from skylark.namesrv import server
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.settings.controller import ControllerSettings
from skylark.settings.loader import load_settings
from skylark.store.disk import DiskFile, Part, RealDisk
from skylark.torture.child import Knob

THROTTLED_SHARE = 0.02
"""Share of writes that wait, as the kernel throttles writers when much memory is dirty."""


class SlowDisk(RealDisk):
    """The machine's file system with syncs and allocations delayed by up to `delay_ms`, and rarely a write.

    Reads are not delayed: what a run has written is in memory.
    """

    def __init__(self, delay_ms: Knob, pause: Callable[[float], object] | None = None) -> None:
        self._delay_ms = delay_ms
        # Not time.sleep: libfaketime breaks it where the monotonic clock is not faked.
        self._pause = pause or threading.Event().wait

    def create(self, path: Path, length: int) -> DiskFile:
        return _SlowFile(super().create(path, length), self)

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        return _SlowFile(super().open(path, writable=writable), self)

    def sync_directory(self, path: Path) -> None:
        self.wait()
        super().sync_directory(path)

    def wait(self) -> None:
        """Wait as for the device."""
        delay_ms = self._delay_ms.value
        if delay_ms:
            self._pause(random.random() * delay_ms / 1000)  # noqa: S311 - any delay

    def wait_for_memory(self) -> None:
        """Wait as for a write into the page cache: usually not at all."""
        if self._delay_ms.value and random.random() < THROTTLED_SHARE:  # noqa: S311
            self.wait()


class _SlowFile:
    def __init__(self, file: DiskFile, disk: SlowDisk) -> None:
        self._file = file
        self._disk = disk
        self.path = file.path
        self.length = file.length
        self.view = file.view
        self.read = file.read
        self.read_resident = file.read_resident
        self.is_resident = file.is_resident
        self.is_zero_from = file.is_zero_from
        self.close = file.close

    def write(self, parts: Sequence[Part], position: int) -> None:
        self._disk.wait_for_memory()
        self._file.write(parts, position)

    def sync(self) -> None:
        self._disk.wait()
        self._file.sync()

    def allocate(self, position: int, length: int) -> None:
        self._disk.wait()
        self._file.allocate(position, length)


async def run_broker(settings: BrokerSettings, delay_ms: Knob) -> None:
    """Run until SIGTERM. Raises StoreError, MasterExists, OSError."""
    await embedded.serve(Broker(settings, disk=SlowDisk(delay_ms)), lambda: None)


def main(kind: str, text: str, *knobs: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    given = msgspec.json.decode(text, type=dict[str, str])
    if kind == "namesrv":
        uvloop.run(server.serve(load_settings(NameServerSettings, flags=given).settings))
    elif kind == "controller":
        uvloop.run(controller.serve(load_settings(ControllerSettings, flags=given).settings))
    else:
        uvloop.run(run_broker(load_settings(BrokerSettings, flags=given).settings, Knob(Path(knobs[0]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
