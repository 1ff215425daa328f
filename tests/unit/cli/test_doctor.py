"""The doctor's single checks: what is well, what is not, and what is advised."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from pathlib import Path

import pytest
import typer

from skylark import health
from skylark.cli import doctor
from skylark.health import HealthCheck, HealthState
from skylark.processes import free_ports

BOOT_MS = 1_700_000_000_000
RUNTIME = {"bootTimestamp": str(BOOT_MS), "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
NOW_S = BOOT_MS / 1000 + 93_784


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', HealthState.OK),
        ('openjdk version "21" 2023-09-19', HealthState.OK),
        ('java version "1.8.0_412"', HealthState.NOTE),
        ("no such thing", HealthState.NOTE),
        (None, HealthState.NOTE),
    ],
)
def test_java(version: str | None, state: HealthState) -> None:
    check = doctor._java(version)
    assert check.state is state
    assert bool(check.advice) == (state is HealthState.NOTE)


def test_a_port_in_use_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports()
    monkeypatch.setattr(doctor, "PORTS", {port: "name server"})
    with socket.create_server(("127.0.0.1", port)):
        busy = asyncio.run(doctor._ports())
    free = asyncio.run(doctor._ports())
    assert (busy.state, free.state) == (HealthState.NOTE, HealthState.OK)
    assert busy.found == f"in use: {port} (name server)"


def test_the_disk_below_which_the_data_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_USED_MAX", 1.0)
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 0)
    assert doctor._disk(tmp_path / "not" / "yet").found.startswith(f"{tmp_path}: ")
    assert doctor._disk(tmp_path).state is HealthState.OK
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    assert doctor._disk(tmp_path).state is HealthState.FAULT
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    assert doctor._disk(tmp_path).found == f"{tmp_path}: not writable"


def test_a_directory_that_may_not_be_looked_into_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # as for whoever is not root
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and path == tmp_path)
    assert doctor._disk(tmp_path / "secret" / "data").found == f"{tmp_path}: not writable"


def test_limits() -> None:
    assert doctor._descriptors(resource.RLIM_INFINITY) == HealthCheck(
        "open files", HealthState.OK, "no limit"
    )
    assert doctor._descriptors(1024).state is HealthState.NOTE
    assert doctor._maps(65_530).state is HealthState.OK
    assert "vm.max_map_count" in doctor._maps(1000).advice


@pytest.mark.parametrize(
    ("here_s", "state"),
    [
        (NOW_S, HealthState.OK),
        (NOW_S + 0.9, HealthState.OK),  # it tells whole seconds
        (NOW_S + 30, HealthState.FAULT),
        (NOW_S - 30, HealthState.FAULT),
    ],
)
def test_clocks_are_compared(here_s: float, state: HealthState) -> None:
    assert health._clock("broker a", RUNTIME, here_s, here_s + 0.1).state is state


@pytest.mark.parametrize("runtime", [{}, {"bootTimestamp": "x"}, {"bootTimestamp": "1", "runtime": "long"}])
def test_a_broker_that_does_not_tell_its_time_is_noted(runtime: dict[str, str]) -> None:
    assert health._clock("broker a", runtime, NOW_S, NOW_S).state is HealthState.NOTE


def test_no_name_server_is_a_fault() -> None:
    with socket.socket() as taken:  # and nobody listens
        taken.bind(("127.0.0.1", 0))
        [check] = health.servers(f"127.0.0.1:{taken.getsockname()[1]}")
    assert (check.name, check.state) == ("name servers", HealthState.FAULT)
    assert "skylark serve" in check.advice


def test_faults_are_told_as_lines_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        doctor, "machine", lambda data: [HealthCheck("disk", HealthState.FAULT, "full", "free some")]
    )
    monkeypatch.setattr(
        doctor, "servers", lambda namesrv: [HealthCheck("name servers", HealthState.OK, namesrv)]
    )
    with pytest.raises(typer.Exit):
        doctor.doctor(tmp_path, "h:1", as_json=False)
    assert capsys.readouterr().out == "disk\tFAULT\tfull\tfree some\nname servers\tok\th:1\t\n"
    with pytest.raises(typer.Exit):
        doctor.doctor(tmp_path, "h:1", as_json=True)
    assert capsys.readouterr().out.startswith('[{"check":"disk","state":"FAULT"')
