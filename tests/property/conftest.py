"""The compiled module for tests that compare it with the Python paths."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest

from scripts.accelerator import build, compiler

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module as it is in the source tree now, whether or not `make setup` has compiled it.

    SKYLARK_SANITIZE=1 compiles it with sanitizers.
    """
    if compiler() is None:
        pytest.skip("no C compiler with Python's headers")
    flags = SANITIZERS if os.environ.get("SKYLARK_SANITIZE") else ()
    path = build(tmp_path_factory.mktemp("compiled"), flags)
    spec = importlib.util.spec_from_file_location("skylark._compiled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
