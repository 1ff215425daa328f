"""Following the page, the slave of a SYNC_MASTER is promoted: it is a SYNC_MASTER, too."""

import subprocess
from pathlib import Path

from tests.support.first_day import SKYLARK, Started, server, until


def broker(log: Path, data: Path, namesrv: str, *more: object) -> Started:
    """`skylark broker` with the flags of docs/howto/replicate.md."""
    flags = ("--name", "broker-a", "--port", 0, "--data", data, "--namesrv", namesrv)
    return server(log, "broker", *flags, "--set", "metricsPromExporterPort=0", *more)


def ha(address: str) -> str:
    done = subprocess.run([*SKYLARK, "broker", "ha", address], capture_output=True, text=True, check=False)
    return done.stdout


def test_the_slave_of_a_sync_master_stays_one_when_it_is_promoted(tmp_path: Path) -> None:
    store = tmp_path / "b"
    with Started(
        tmp_path / "namesrv.log", *SKYLARK, "namesrv", "--port", 0, "--set", f"kvConfigPath={tmp_path / 'kv'}"
    ) as name_server:
        namesrv = name_server.until(r"name server on (\S+),")[1]
        role = ("--set", "brokerRole=SYNC_MASTER")
        with broker(tmp_path / "master.log", tmp_path / "a", namesrv, *role) as master:
            address = master.until(r"broker broker-a on (\S+) ")[1]
            with broker(tmp_path / "slave.log", store, namesrv, "--slave-of", address) as slave:
                follower = slave.until(r"broker broker-a on (\S+) ")[1]
                until(lambda: "master's role\tSYNC_MASTER" in ha(follower), lambda: ha(follower))
                master.process.kill()
                master.process.wait()
                slave.stop()
        force = "--force-master"
        for start in ("promoted", "restarted"):
            with broker(tmp_path / f"{start}.log", store, namesrv, force) as promoted:
                promoted.until("SYNC_MASTER, port for slaves")
                assert "so this broker is a SYNC_MASTER, too" in promoted.text
                assert "ASYNC_MASTER, port" not in promoted.text
                assert "less safe" not in promoted.text
        lowered = ("--set", "brokerRole=ASYNC_MASTER")
        with broker(tmp_path / "lowered.log", store, namesrv, force, *lowered) as promoted:
            promoted.until("ASYNC_MASTER, port for slaves")
            promoted.until("WARNING .* less safe .*: brokerRole is ASYNC_MASTER and was SYNC_MASTER")
