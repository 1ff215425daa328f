"""What all tests share: the golden files, how hypothesis runs, and the rule for missing toolchains."""

import compileall
import gc
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
# So does nohup with a closed terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Spark's JVMs live for seconds or minutes here, and the second compiler would take a core from the tests.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Servers of tests run side by side: those that are tried with gRPC clients name a port.
os.environ.setdefault("SKYLARK_GRPC_PORT", "off")

# On a busy machine a slow example says nothing. A failure prints the blob that replays it.
hypothesis.settings.register_profile(
    "skylark", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("skylark"), max_examples=25)
hypothesis.settings.load_profile("skylark")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The directory of files that Apache RocketMQ wrote."""
    return Path(__file__).parent / "golden"


FIRST = ("pipelines", "interop", "fault", "first_day", "integration", "property")
"""Folders whose tests take longest, in the order in which they are handed out; unit tests fill the gaps."""
PARAMETERS_OF_SERVERS = ("kind", "version")
SHARED_SERVERS = {"spark": "spark", "apache_cluster": "spark", "apache": "apache"}
"""Session fixtures that only one worker is to start, and the group of the tests that use them."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share servers on one worker (`--dist loadgroup`), and begin with the long ones."""
    for item in items:
        if group := server_group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    root = Path(__file__).parent
    folders = {folder: number for number, folder in enumerate(FIRST)}
    items.sort(key=lambda item: folders.get(item.path.relative_to(root).parts[0], len(FIRST)))


def pytest_collection_finish() -> None:
    """Take ten thousand collected tests out of every later garbage collection: some tests ask for many."""
    gc.collect()
    gc.freeze()


def server_group(item: pytest.Item) -> str | None:
    """Return the name of the servers that a test shares with others: session-wide ones, or its module's."""
    if not isinstance(item, pytest.Function):
        return None
    definitions = item._fixtureinfo.name2fixturedefs
    scopes = {name: {each.scope for each in found} for name, found in definitions.items()}
    for name, group in SHARED_SERVERS.items():
        if "session" in scopes.get(name, ()):
            return group
    if not any("module" in each for each in scopes.values()):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    chosen = [str(parameters[name]) for name in PARAMETERS_OF_SERVERS if name in parameters]
    return "-".join([item.path.stem, *chosen])


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
