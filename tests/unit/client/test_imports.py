"""`import skylark` is quick, and the clients import where there is no POSIX."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import skylark
from skylark import aio

IMPORT_MS_MAX = 150
TRIES = 5

NO_POSIX = textwrap.dedent(
    """
    import asyncio, importlib, os, pkgutil, sys

    class Absent:
        names = {"fcntl", "resource", "uvloop", "pwd", "grp", "termios", "posix_ipc"}

        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in self.names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return None

    sys.meta_path.insert(0, Absent())
    for name in Absent.names:
        sys.modules.pop(name, None)
    for name in ("pwritev", "pwrite", "preadv", "register_at_fork", "posix_fallocate", "getrandom", "fork"):
        if hasattr(os, name):
            delattr(os, name)
    del asyncio.AbstractEventLoop.add_signal_handler

    import skylark, skylark.aio
    for name in skylark.__all__:
        getattr(skylark, name)
    for name in skylark.aio.__all__:
        getattr(skylark.aio, name)
    import skylark.client
    for module in pkgutil.walk_packages(skylark.client.__path__, "skylark.client."):
        if module.name.rpartition(".")[2] not in ("record_rows", "arrow_rows"):  # imported on first use
            importlib.import_module(module.name)
    print(sorted(Absent.names & set(sys.modules)))
    """
)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_clients_import_without_what_only_posix_has() -> None:
    assert run(NO_POSIX) == "[]"


def test_import_takes_less_than_150_ms() -> None:
    code = "import time; t = time.perf_counter(); import skylark; print((time.perf_counter() - t) * 1000)"
    assert min(float(run(code)) for _ in range(TRIES)) < IMPORT_MS_MAX


NO_EXTRAS = textwrap.dedent(
    """
    import importlib, logging, pkgutil, sys

    for name in "lz4 zstandard pyspark pyarrow numpy pandas deltalake opentelemetry hdrh yaml".split():
        sys.modules[name] = None  # importing it fails

    import skylark
    with skylark.testing.broker() as namesrv, skylark.Producer("shop", namesrv=namesrv) as producer:
        print(producer.send(skylark.Message("orders", b"x" * 10_000)).is_ok)
        try:
            producer.send(skylark.Message("orders", b""))
        except skylark.errors.BadMessage as error:
            print(error)
    print(logging.root.handlers + logging.getLogger("skylark").handlers)
    import skylark.client
    for name in skylark.__all__:
        getattr(skylark, name)
    for module in pkgutil.walk_packages(skylark.client.__path__, "skylark.client."):
        if module.name.rpartition(".")[2] not in ("record_rows", "arrow_rows"):  # imported on first use
            importlib.import_module(module.name)
    """
)


def test_without_any_extra_and_with_one_import_messages_are_sent() -> None:
    sent, refused, log_handlers = run(NO_EXTRAS).splitlines()
    assert sent == "True"
    assert "length is zero" in refused
    assert log_handlers == "[]", "where logs go is the program's business"


def test_public_names_are_there_and_others_are_not() -> None:
    assert set(skylark.__all__) == {"__version__", *skylark._PUBLIC, *skylark._PACKAGES}
    assert set(aio.__all__) == set(aio._PUBLIC)
    assert {"Producer", "Message", "aio"} & set(dir(skylark))
    assert skylark.aio is aio
    for module in (skylark, aio):
        with pytest.raises(AttributeError, match="Nonsense"):
            _ = module.Nonsense
