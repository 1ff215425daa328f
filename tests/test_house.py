"""The rules of the source tree: layers, purity, sizes, names."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# Imports go only to lower numbers. `errors` is open to its own layer, too.
LAYERS = {
    "_version": 0,
    "_compiled": 0,
    "accelerator": 1,
    "errors": 0,
    "settings": 0,
    "histogram": 0,
    "certificates": 1,
    "clock": 0,
    "tasks": 0,
    "atomic_file": 0,
    "processes": 0,
    "stop_signal": 0,
    "html_report": 0,
    "quantities": 0,
    "model": 1,
    "protocol": 2,
    "remoting": 3,
    "auth": 3,
    "store": 3,
    "arrow": 2,
    "client": 4,
    "broker": 4,
    "namesrv": 4,
    "controller": 4,
    "admin": 5,
    "pipelines": 5,
    "embedded": 5,
    "proxy": 5,
    "testing": 6,
    "bench": 6,
    "torture": 6,
    "cluster": 6,
    "demo": 6,
    "health": 6,
    "console": 7,
    "cli": 8,
    "__main__": 9,
    "aio": 9,  # public names, like `skylark` itself
    "pyspark_rocketmq": 9,  # the name under which Spark finds source and sink
}
# Imports that are banned although the layers allow them.
BANS = {
    "store": ("skylark.protocol", "asyncio"),
    "client": ("skylark.store",),
    "namesrv": ("skylark.store",),
    "controller": ("skylark.store",),
    "cli": ("skylark.remoting",),
}
# Parts that may import only some modules of another.
DOORS = {
    ("pipelines", "remoting"): ("skylark.remoting.blocking_connection", "skylark.remoting.tls_client"),
    ("pipelines", "store"): ("skylark.store.store_reader", "skylark.store.queue_entry"),
}
# Modules that only these parts may import.
RESERVED = {
    "socket": {"remoting", "processes", "bench", "torture", "console"},
    "uvloop": {"cli", "bench", "torture"},
}
ENVIRONMENT_READERS = {
    "settings",
    "processes",
    "admin",
    "pipelines",
    "embedded",
    "testing",
    "bench",
    "torture",
    "cli",
}
IO_MODULES = (
    "socket",
    "asyncio",
    "threading",
    "ssl",
    "time",
    "select",
    "selectors",
    "subprocess",
    "multiprocessing",
)
PURE_MARK = re.compile(r"\b(Pure|Sans-IO)\.")
FORBIDDEN_WORDS = re.compile(r"Default|Abstract|Impl(?![a-z])|Manager|Factory|Helper|Util(?![a-z])|Utils")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 900
FRAGMENT_LINES_MAX = 80
COMPILED_LINES_MAX = 600
"""Of C, without comments and empty lines: the compiled module stays small."""
# Small modules with a single importer. Fold them into the importer; this list must only shrink.
FRAGMENTS = {
    "skylark.bench.build_cache",
    "skylark.pipelines.jobs.sql",
    "skylark.broker.arrow_joiner",  # imports pyarrow, which is optional
}
# Imported by the script that is installed, too.
ENTRY_POINTS = {"skylark.cli.start"}
COMPILED = {"skylark._compiled"}
"""Modules without Python source."""
GERUND = re.compile(r"(\w+_)?[a-z]+ing")
# Last words of module names that are established nouns.
NOUNS = {"remoting", "testing", "monitoring", "polling", "encoding"}
EXTRAS = (
    "cryptography",
    "pyspark",
    "pyarrow",
    "numpy",
    "pandas",
    "deltalake",
    "lz4",
    "zstandard",
    "opentelemetry",
    "uvloop",
    "httpx",
    "starlette",
    "uvicorn",
    "jinja2",
)


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def part(self) -> str:
        """The name under `skylark` that determines the layer; empty for `skylark` itself."""
        return self.name.removeprefix("skylark").removeprefix(".").split(".")[0]

    @property
    def is_pure(self) -> bool:
        first_line = (ast.get_docstring(self.tree) or "").partition("\n")[0]
        return self.part in ("model", "protocol") or PURE_MARK.search(first_line) is not None

    @cached_property
    def imports(self) -> list[str]:
        """The dotted names of all imports; the last word may be a symbol of a module."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                found += [f"{base}.{alias.name}" for alias in node.names]
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")[: None if self.is_package else -1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])


def under(name: str, module: str) -> bool:
    """Return whether `name` is the module or something in it."""
    return name == module or name.startswith(module + ".")


@cache
def load_modules() -> list[Module]:
    """Read every module of the distribution."""
    modules = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules.append(Module(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package))
    return modules


@pytest.fixture(scope="module", autouse=True)
def parsed_source() -> Iterator[None]:
    """One worker parses the source, and its trees do not slow down the garbage collections of later tests."""
    yield
    load_modules.cache_clear()


def layer_faults(module: Module) -> Iterator[str]:
    """Yield imports that go up or sideways, and parts without a layer."""
    if not module.part:
        return
    if module.part not in LAYERS:
        yield f"{module.name}: {module.part} has no layer"
        return
    for imported in module.imports:
        if not under(imported, "skylark"):
            continue
        part = Module(imported, "").part
        if part in ("", "__version__", module.part) or part == "errors":
            continue
        if LAYERS.get(part, 99) >= LAYERS[module.part]:
            yield f"{module.name} imports {imported}: not a lower layer"


def ban_faults(module: Module) -> Iterator[str]:
    """Yield imports that are forbidden by name."""
    for imported in module.imports:
        if any(under(imported, banned) for banned in BANS.get(module.part, ())):
            yield f"{module.name} imports {imported}: banned"
        doors = DOORS.get((module.part, Module(imported, "").part if under(imported, "skylark") else ""))
        if doors and not any(under(imported, door) for door in doors):
            yield f"{module.name} imports {imported}: only {' and '.join(doors)} may be imported"
        for reserved, parts in RESERVED.items():
            if under(imported, reserved) and module.part not in parts:
                yield f"{module.name} imports {imported}: reserved for {', '.join(sorted(parts))}"
        if module.is_pure and any(under(imported, io) for io in IO_MODULES):
            yield f"{module.name} imports {imported}: the module is pure"


def environment_faults(module: Module) -> Iterator[str]:
    """Yield reads of the environment below the settings."""
    if module.part in ENVIRONMENT_READERS:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            yield f"{module.name}:{node.lineno} reads the environment"


def size_faults(module: Module) -> Iterator[str]:
    """Yield functions and modules above the limits."""
    lines = module.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{module.name} has {lines} lines, more than {MODULE_LINES_MAX}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{module.name}.{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def name_faults(module: Module) -> Iterator[str]:
    """Yield modules without a docstring and meaningless names."""
    if not ast.get_docstring(module.tree):
        yield f"{module.name} has no docstring"
    if re.search(r"(^|[._])(utils?|helpers?|misc|common)($|[._])", module.name):
        yield f"{module.name}: not a noun of the domain"
    name = module.name.rpartition(".")[2]
    if GERUND.fullmatch(name) and name.rpartition("_")[2] not in NOUNS:
        yield f"{module.name}: named by an activity; use a noun"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and FORBIDDEN_WORDS.search(node.name):
            yield f"{module.name}.{node.name}: a word without meaning"


CHECKS = [layer_faults, ban_faults, environment_faults, size_faults, name_faults]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_source_keeps_the_rules(check: object) -> None:
    assert callable(check)
    faults = [fault for module in load_modules() for fault in check(module)]
    assert not faults, "\n".join(faults)


LONG_FUNCTION = "def long() -> None:\n" + "    x = 1\n" * FUNCTION_LINES_MAX


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("skylark.model.x", "from skylark.protocol.codes import A", "not a lower layer"),
        ("skylark.store.x", "from skylark import remoting", "not a lower layer"),
        ("skylark.broker.x", "import skylark.client.producer.producer", "not a lower layer"),
        ("skylark.broker.handlers.x", "from ...namesrv import routes", "not a lower layer"),
        ("skylark.clock", "from skylark.settings import S", "not a lower layer"),
        ("skylark.model.x", "from skylark.unheard import S", "not a lower layer"),
        ("skylark.unheard.x", "", "has no layer"),
        ("skylark.store.x", "from skylark.protocol import codes", "banned"),
        ("skylark.store.x", "def f():\n    import asyncio", "banned"),
        ("skylark.client.x", "from skylark.store.store_reader import StoreReader", "banned"),
        ("skylark.namesrv.x", "if TYPE_CHECKING:\n    import skylark.store", "banned"),
        ("skylark.cli.x", "from skylark.remoting.connection_pool import call", "banned"),
        (
            "skylark.pipelines.x",
            "from skylark.remoting import link",
            "only skylark.remoting.blocking_connection and skylark.remoting.tls_client may",
        ),
        (
            "skylark.pipelines.x",
            "from skylark.store.message_store import M",
            "only skylark.store.store_reader and",
        ),
        ("skylark.broker.x", "import socket", "reserved"),
        ("skylark.broker.x", "import uvloop", "reserved"),
        ("skylark.model.x", "from time import monotonic", "is pure"),
        ("skylark.protocol.x", "import asyncio.streams", "is pure"),
        ("skylark.client.x", '"""Pure. Decides."""\nimport threading', "is pure"),
        ("skylark.broker.x", "import os\nHOME = os.environ['HOME']", "reads the environment"),
        ("skylark.store.x", LONG_FUNCTION, "has 71 lines"),
        ("skylark.store.x", "x = 1\n" * (MODULE_LINES_MAX + 1), f"has {MODULE_LINES_MAX + 1} lines"),
        ("skylark.store.x", "x = 1", "no docstring"),
        ("skylark.store.x", "class TopicManager: ...", "without meaning"),
        ("skylark.store.file_utils", "", "not a noun of the domain"),
        ("skylark.client.sending", "", "named by an activity"),
        ("skylark.client.pull_waiting", "", "named by an activity"),
    ],
)
def test_a_broken_rule_is_found(name: str, text: str, fault: str) -> None:
    module = Module(name, text)
    faults = [found for check in CHECKS for found in check(module)]
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("skylark.atomic_file", "from skylark.errors import StoreError"),
        ("skylark.broker.x", "import asyncio\nfrom skylark.store.message_store import MessageStore"),
        ("skylark.store.x", "from .disk import Disk\nfrom skylark.model import record\nimport threading"),
        (
            "skylark.pipelines.x",
            "from skylark.remoting.blocking_connection import call\nimport skylark.store.store_reader",
        ),
        ("skylark.cli.x", "from skylark import __version__\nimport uvloop\nimport os\nos.environ"),
        ("skylark.client.x", '"""Not pure, as stated here."""\nimport time\nclass Implied: ...'),
    ],
)
def test_what_is_allowed_is_not_found(name: str, text: str) -> None:
    module = Module(name, text if text.startswith('"""') else f'"""Some module."""\n{text}')
    assert [found for check in CHECKS for found in check(module)] == []


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Return the imported modules of each module."""
    names = {module.name for module in modules} | COMPILED
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = {
            imported if imported in names else imported.rpartition(".")[0] for imported in module.imports
        }
        graph[module.name] = (targets & names) - {module.name}
    return graph


def import_cycle(modules: list[Module]) -> list[str]:
    """Return the modules of one import cycle, or nothing."""
    try:
        graphlib.TopologicalSorter(import_graph(modules)).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_there_is_no_import_cycle() -> None:
    assert import_cycle(load_modules()) == []
    ring = [Module("skylark.a", "import skylark.b"), Module("skylark.b", "from skylark.a import x")]
    assert set(import_cycle(ring)) == {"skylark.a", "skylark.b"}


def fragments(modules: list[Module]) -> set[str]:
    """Return small modules with a single importer, unless their package exports them."""
    importers: dict[str, set[str]] = {}
    for name, targets in import_graph(modules).items():
        for target in targets:
            importers.setdefault(target, set()).add(name)
    return {
        module.name
        for module in modules
        if not module.is_package
        and module.name not in ENTRY_POINTS
        and module.text.count("\n") < FRAGMENT_LINES_MAX
        and len(importers.get(module.name, ())) == 1
        and importers[module.name] != {module.name.rpartition(".")[0]}
    }


def test_no_fragment_is_added() -> None:
    found = fragments(load_modules())
    assert found <= FRAGMENTS, f"fold into the only importer: {sorted(found - FRAGMENTS)}"
    assert found >= FRAGMENTS, f"no longer fragments, remove from FRAGMENTS: {sorted(FRAGMENTS - found)}"


def test_a_fragment_is_found() -> None:
    small, user = Module("skylark.a.small", "x = 1\n" * 79), Module("skylark.b", "import skylark.a.small")
    assert fragments([small, user]) == {"skylark.a.small"}
    assert fragments([Module("skylark.a.small", "x = 1\n" * 80), user]) == set()
    assert fragments([small, user, Module("skylark.c", "from skylark.a.small import x")]) == set()
    assert fragments([small, Module("skylark.a", "from skylark.a.small import x", is_package=True)]) == set()


def duplicate_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Return class names that several modules define, with these modules."""
    owners: dict[str, list[str]] = {}
    for module in modules:
        for name in {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}:
            owners.setdefault(name, []).append(module.name)
    return {name: owned for name, owned in owners.items() if len(owned) > 1}


def test_a_class_name_exists_once() -> None:
    assert duplicate_classes(load_modules()) == {}
    twice = [Module("skylark.a", "class Batch: ..."), Module("skylark.b", "class Batch: ...")]
    assert duplicate_classes(twice) == {"Batch": ["skylark.a", "skylark.b"]}


def test_the_compiled_module_is_small() -> None:
    text = (SOURCE / "skylark" / "_compiled.c").read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= COMPILED_LINES_MAX


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_import_skylark_pulls_in_no_extra() -> None:
    code = f"import sys, skylark; print([name for name in {EXTRAS!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Yield path and text of every file that is, or would be, committed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    for name in listing.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue  # an archive


# Written in pieces, so that this file does not match itself.
MACHINE_PATH = re.compile(
    r"(?<![\w./~-])/(?:" + "|".join(["wor" + "k", "far" + "m", "roo" + "t", "tm" + "p"]) + r")/\w"
)
REGISTRY_HOST = re.compile(
    "|".join(["pypi[.]or" + "g", "pythonhos" + "ted", "npmj" + "s[.]", "maven" + "2", "repo[.]mav" + "en"])
    + "|"
    + "|".join(["proxy[.]gol" + "ang", "crates[.]i" + "o", "deb[.]deb" + "ian", "archive[.]ubun" + "tu"])
)


def test_no_machine_path_and_no_registry_host_is_committed() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: nothing is tracked")
    faults = [
        f"{name}: {found[0]}"
        for name, text in tracked_texts()
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        if (found := pattern.search(text))
    ]
    assert not faults, "\n".join(faults)
    assert MACHINE_PATH.search("see /" + "work/main")
    assert REGISTRY_HOST.search("https://py" + "pi.org/simple")
