"""A server as a process, as `skylark broker` and `skylark namesrv` run it; the broker's disk can become slow.

python -m skylark.torture.server namesrv JSON          (settings, by either of their names)
python -m skylark.torture.server broker JSON KNOB
"""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

import msgspec
import uvloop

from skylark import embedded
from skylark.broker.broker import Broker
from skylark.namesrv import server
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.settings.loading import load_settings
from skylark.torture.child import Knob, end_with_parent
from skylark.torture.slow_disk import SlowDisk


async def run_broker(settings: BrokerSettings, delay_ms: Knob) -> None:
    """Until SIGTERM. Raises StoreError, MasterExists, OSError."""
    await embedded.serve(Broker(settings, disk=SlowDisk(delay_ms)), lambda: None)


def main(kind: str, text: str, *knobs: str) -> None:
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    given = msgspec.json.decode(text, type=dict[str, str])
    if kind == "namesrv":
        uvloop.run(server.serve(load_settings(NameServerSettings, flags=given).settings))
    else:
        uvloop.run(run_broker(load_settings(BrokerSettings, flags=given).settings, Knob(Path(knobs[0]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
