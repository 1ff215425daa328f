"""What all tests share: the golden files, how hypothesis runs, and the rule for missing toolchains."""

import compileall
import os
import shutil
import signal
from pathlib import Path

import hypothesis
import pytest

# Tests start hundreds of processes. Where writing bytecode is switched off, each would compile all modules.
compileall.compile_dir(Path(__file__).parent.parent / "src", quiet=2)

# A shell starts what runs in the background deaf to Ctrl-C, and programs hand that down to those they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: on a busy machine a slow example says nothing. A failure prints the blob that replays it.
hypothesis.settings.register_profile("skylark", deadline=None, print_blob=True)
hypothesis.settings.load_profile("skylark")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The directory of files that Apache RocketMQ wrote."""
    return Path(__file__).parent / "golden"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `interop("java", "mvn")` needs these tools: without them it skips, or fails under CI."""
    marker = item.get_closest_marker("interop")
    if marker is None:
        return
    if missing := [tool for tool in marker.args if shutil.which(tool) is None]:
        sentence = f"needs {', '.join(missing)}: run `make setup`"
        if os.environ.get("CI"):
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
