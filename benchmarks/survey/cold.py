"""Reads of a backlog that is no longer in memory, alone and beside sends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from skylark.bench.load import BadLoad, Load, LoadKind
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import RECORD_OVERHEAD_BYTES, LoadTarget, messages_that_fit
from skylark.bench.machine import BROKER_CPU, scratch
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.bench.servers import Progress, ServerChoice, own_servers

PASS_TIMEOUT_S = 300.0
SENDS_S_MIN = 1.0
PROBES = 512
PROBE_BYTES = 4096
STILL_IN_MEMORY_MAX = 0.1
SENT = "cold-sent"


def measure_cold(choice: ServerChoice, load: Load, log_bytes: int, progress: Progress) -> Document:
    """Pull a log of `log_bytes` once from the disk: alone, and beside sends at the load's rate.

    The broker is started anew before each pass, since what it has mapped stays in memory. Raises BadLoad if
    the place is not our own, LoadFailed, ProcessFailed, RocketMQError.
    """
    if not choice.is_own or not load.rate:
        raise BadLoad("cold reads are measured on a broker of our own, beside sends at a rate")
    if sys.platform != "linux":
        raise BadLoad("only Linux tells what is in memory, and lets go of it")
    with scratch() as directory:
        run = _Run(choice, load, directory, log_bytes, progress)
        cells = list(run.cells())
        conditions: dict[str, Value] = {
            "servers": "started for this run",
            "flush": choice.flush,
            "log_mib": log_bytes >> 20,
            "rate": load.rate,
            "client": run.client.kind,
        }
        return make_document("cold", conditions, cells)


class _Run:
    def __init__(
        self, choice: ServerChoice, load: Load, directory: Path, log_bytes: int, progress: Progress
    ) -> None:
        self._choice = choice
        self._directory = directory
        self._progress = progress
        self.client = LoadClient()
        messages = log_bytes // (load.body_bytes + RECORD_OVERHEAD_BYTES)
        self._messages = min(messages, messages_that_fit(directory, load.body_bytes))
        self._pulls = replace(
            load,
            kind=LoadKind.PULL,
            rate=0.0,
            warm_up_s=0.0,
            seconds=PASS_TIMEOUT_S,
            messages_max=self._messages,
        )
        self._sends = replace(load, kind=LoadKind.SEND, topic=SENT, batch=1)

    def cells(self) -> Iterator[Cell]:
        with self._broker() as target:
            target.fill(replace(self._pulls, address=target.address), self._messages)
            yield self._sent(target, "sends alone", self._sends.seconds)
        with self._broker() as target:
            yield (alone := self._pulled(target, "cold pulls alone"))
        with self._broker() as target:
            # As long as the pulls will take.
            seconds = max(alone.seconds, SENDS_S_MIN)
            with (
                ThreadPoolExecutor(1, "skylark-cold-sends") as thread,
                LoadTarget(target.address, self.client, cpu=self._choice.client_cpu) as pulling,
            ):
                sent = thread.submit(self._sent, target, "sends beside cold pulls", seconds)
                yield self._pulled(pulling, "cold pulls beside sends")
                yield sent.result()

    @contextmanager
    def _broker(self) -> Iterator[LoadTarget]:
        """A broker on the same files, none of which are in memory."""
        drop_from_memory(self._directory)
        choice = self._choice
        cpu = BROKER_CPU if choice.pin else None
        with (
            own_servers(
                self._directory, flush=choice.flush, settings=choice.settings, cpu=cpu, is_needed_again=True
            ) as served,
            LoadTarget(served.broker, self.client, cpu=choice.client_cpu) as target,
        ):
            yield target

    def _pulled(self, target: LoadTarget, name: str) -> Cell:
        in_memory = memory_share(self._directory, target.log_end())
        cell = target.measure(
            name, replace(self._pulls, address=target.address), partial(self._progress, name)
        )
        wrong = [f"{in_memory:.0%} of the log was still in memory"] if in_memory > STILL_IN_MEMORY_MAX else []
        figures: dict[str, Value] = {"in_memory_share": round(in_memory, 3)}
        return msgspec.structs.replace(cell, figures=figures, wrong=[*cell.wrong, *wrong])

    def _sent(self, target: LoadTarget, name: str, seconds: float) -> Cell:
        load = replace(self._sends, address=target.address, seconds=seconds)
        return target.measure(name, load, partial(self._progress, name))


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("**/commitlog/*"))


def drop_from_memory(directory: Path) -> None:
    """Write a store's files to disk, and let the kernel forget them; those of others stay as they are."""
    for path in (*_logs(directory), *directory.glob("**/consumequeue/*/*/*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def memory_share(directory: Path, log_end: int) -> float:
    """How much of the log is in memory, by reads at evenly spread places that must not wait for the disk.

    A second look at the same places would find what the first has asked for.
    """
    found = looked = 0
    for path in _logs(directory):
        written = min(max(log_end - int(path.name), 0), path.stat().st_size)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # else a look reads what is around it
            for place in range(0, written, max(written // PROBES, PROBE_BYTES)):
                looked += 1
                found += _is_in_memory(descriptor, place)
        finally:
            os.close(descriptor)
    return found / max(looked, 1)


def _is_in_memory(descriptor: int, place: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(PROBE_BYTES)], place, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError as error:
        raise BadLoad(f"this file system does not tell what is in memory: {error.strerror}") from None
