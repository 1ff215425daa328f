"""`skylark broker ha`: how far slaves are behind, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skylark.admin.sync import Admin
from skylark.cli.output import NOT_KNOWN, Screen, print_json
from skylark.protocol.bodies import HaStatus

COLUMNS = ("slave", "in sync", "acknowledged", "behind", "seconds", "bytes/s")


def show(broker: str, namesrv: str, *, as_json: bool) -> None:
    """Print what a broker says of its replicas. Raises RocketMQError."""
    with Admin(namesrv=broker if ":" in broker else namesrv) as admin:  # an address needs no name server
        status, runtime = admin.brokers.replication(broker), admin.brokers.runtime(broker)
    if as_json:
        print_json(described(status, runtime))
    elif status.master:
        _show_master(status, runtime)
    else:
        _show_slave(status, runtime)


def described(status: HaStatus, runtime: Mapping[str, str]) -> dict[str, Any]:
    """All of it as plain values; seconds and errors only where the broker is ours."""
    facts = {name: value for name, value in runtime.items() if name.startswith("replication")}
    slaves = [
        {
            "address": slave.addr,
            "inSync": slave.in_sync,
            "acknowledgedOffset": slave.slave_ack_offset,
            "lagBytes": slave.diff,
            "lagSeconds": _seconds(runtime).get(slave.addr or ""),
            "bytesPerSecond": slave.transferred_byte_in_second,
        }
        for slave in status.ha_connection_info
    ]
    return {
        "master": status.master,
        "logEnd": int(runtime.get("commitLogMaxOffset", 0)),
        "slaves": slaves,
        **facts,
    }


def _show_master(status: HaStatus, runtime: Mapping[str, str]) -> None:
    screen, seconds = Screen(), _seconds(runtime)
    facts = [
        ("role", runtime.get("replicationRole", "master")),
        ("log ends at", status.master_commit_log_max_offset),
        ("slaves", f"{len(status.ha_connection_info)}, {status.in_sync_slave_nums} in sync"),
        ("last error", runtime.get("replicationLastError") or NOT_KNOWN),
    ]
    screen.facts(facts)
    if status.ha_connection_info:
        rows = [
            (
                slave.addr, "yes" if slave.in_sync else "no", slave.slave_ack_offset, slave.diff,
                seconds.get(slave.addr or "", NOT_KNOWN), slave.transferred_byte_in_second,
            )
            for slave in status.ha_connection_info
        ]  # fmt: skip
        screen.table(COLUMNS, rows)


def _show_slave(status: HaStatus, runtime: Mapping[str, str]) -> None:
    client = status.ha_client_runtime_info
    connected = runtime.get("replicationConnected")
    Screen().facts(
        [
            ("role", runtime.get("replicationRole", "slave")),
            ("master", runtime.get("replicationMaster") or client.master_addr or NOT_KNOWN),
            ("connected", {"true": "yes", "false": "no"}.get(connected or "", NOT_KNOWN)),
            ("log ends at", client.max_offset),
            ("behind", runtime.get("replicationLagBytes", NOT_KNOWN)),
            ("seconds behind", runtime.get("replicationLagSeconds", NOT_KNOWN)),
            ("bytes/s", client.transferred_byte_in_second),
            ("last error", runtime.get("replicationLastError") or NOT_KNOWN),
            ("cut off", runtime.get("replicationDivergence") or NOT_KNOWN),
        ]
    )


def _seconds(runtime: Mapping[str, str]) -> dict[str, str]:
    """By slave: for how long it has not had all of the log."""
    pairs = (text.rpartition("=") for text in runtime.get("replicationLagSeconds", "").split())
    return {address: lag_s for address, _, lag_s in pairs if address}
