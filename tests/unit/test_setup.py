"""scripts/setup.sh takes the right branch on each kind of machine. What it calls are stand-ins that log."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"
BASH = shutil.which("bash")
REAL_PROGRAMS = ("cat", "cksum", "dirname", "env", "sed", "cp", "mkdir", "true")

PYTHON = """
echo "python $*" >>"$LOG"
case "$1 $2" in
  -c*) exit "${PYTHON_UNFIT:-0}" ;;
  "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip") exit "${PIP_FAILS:-0}" ;;
esac
"""
APT_GET = """
echo "apt-get $*" >>"$LOG"
[ "$1" = install ] || exit 0
shift
for package; do
  case $package in
    python3) cp "$HIDDEN/python3" "$BIN/" ;;
    openjdk-*) cp "$HIDDEN/java" "$HIDDEN/javac" "$BIN/" ;;
    maven) cp "$HIDDEN/mvn" "$BIN/" ;;
    nodejs) cp "$HIDDEN/node" "$BIN/" ;;
    npm) cp "$HIDDEN/npm" "$BIN/" ;;
    chromium) cp "$HIDDEN/chromium" "$BIN/" ;;
    etcd-server) cp "$HIDDEN/etcd" "$BIN/" ;;
  esac
done
"""
STAND_INS = {
    "python3": PYTHON,
    "java": """echo 'openjdk version "17.0.15" 2025-04-15' >&2""",
    "javac": "exit 0",
    "mvn": "exit 0",
    "node": "exit 0",
    "npm": "exit 0",
    "chromium": "exit 0",
    "etcd": "exit 0",
    "apt-get": APT_GET,
    "apt-cache": '[ "$2" = openjdk-21-jdk-headless ]',
    "sudo": 'echo "sudo $*" >>"$LOG"; shift; exec "$@"',
}
TOOLS = {"python3", "java", "javac", "mvn", "node", "npm", "chromium", "etcd"}


@dataclass
class Machine:
    """A checkout beside a PATH that holds nothing but what the test put there."""

    path: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def log(self) -> list[str]:
        log = self.path / "log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def checkout(self) -> Path:
        return self.path / "checkout"

    def put(self, name: str, text: str, folder: str = "bin") -> None:
        program = self.path / folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert BASH
        places = {"PATH": self.bin, "BIN": self.bin, "HIDDEN": self.path / "hidden", "LOG": self.path / "log"}
        return subprocess.run(
            [BASH, str(self.checkout / "scripts" / "setup.sh"), *words],
            env={name: str(place) for name, place in places.items()} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A Linux machine of an ordinary user with all tools and without a package manager."""
    made = Machine(tmp_path)
    for folder in ("bin", "hidden", "checkout/scripts"):
        (tmp_path / folder).mkdir(parents=True)
    for name in REAL_PROGRAMS:
        (made.bin / name).symlink_to(str(shutil.which(name)))
    for name, text in STAND_INS.items():
        made.put(name, text, "bin" if name in TOOLS else "hidden")
        made.put(name, text, "hidden")
    made.put("id", "echo 1000")
    made.put("uname", "echo Linux")
    shutil.copy(SCRIPT, made.checkout / "scripts")
    (made.checkout / "requirements.lock").write_text("example==1.0\n")
    (made.checkout / "pyproject.toml").write_text("[project]\n")
    return made


def remove(machine: Machine, *names: str) -> None:
    for name in names:
        (machine.bin / name).unlink()


def give(machine: Machine, *names: str) -> None:
    for name in names:
        shutil.copy(machine.path / "hidden" / name, machine.bin)


def pip_calls(machine: Machine) -> list[str]:
    return [line.split("--disable-pip-version-check ")[1] for line in machine.log if "-m pip" in line]


def test_with_all_tools_it_makes_the_environment_and_installs_the_lock_before_the_package(
    machine: Machine,
) -> None:
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m venv --clear .venv" in machine.log
    assert pip_calls(machine) == ["-r requirements.lock", "--no-deps --no-build-isolation -e ."]


def test_the_second_run_does_nothing(machine: Machine) -> None:
    machine.setup()
    log = machine.log
    done = machine.setup()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.log == log


@pytest.mark.parametrize("file", ["requirements.lock", "pyproject.toml"])
def test_a_changed_file_installs_again_into_the_same_environment(machine: Machine, file: str) -> None:
    machine.setup()
    with (machine.checkout / file).open("a") as changed:
        changed.write("# more\n")
    assert machine.setup().returncode == 0
    assert len(pip_calls(machine)) == 4
    assert sum("-m venv" in line for line in machine.log) == 1


def test_a_failed_install_is_tried_again(machine: Machine) -> None:
    assert machine.setup(PIP_FAILS="1").returncode == 1
    assert machine.setup().returncode == 0
    assert len(pip_calls(machine)) == 3


def test_without_package_manager_and_java_one_sentence_says_what_to_install(machine: Machine) -> None:
    remove(machine, "java", "javac", "mvn", "node")
    done = machine.setup()
    assert done.returncode == 0, "the environment itself needs no Java"
    assert done.stderr == (
        "Please install a JDK 17 or newer, Maven, Node.js with npm (for example: "
        "apt-get install openjdk-17-jdk-headless maven nodejs npm) and run `make setup` again.\n"
    )
    assert len(pip_calls(machine)) == 2


@pytest.mark.parametrize(("program", "name"), [("mvn", "Maven"), ("chromium", "Chromium"), ("etcd", "etcd")])
def test_under_ci_a_missing_tool_is_a_failure(machine: Machine, program: str, name: str) -> None:
    remove(machine, program)
    done = machine.setup(CI="true")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Please install {name} (")
    assert pip_calls(machine) == []


def test_to_run_nothing_is_installed_that_only_tests_need(machine: Machine) -> None:
    remove(machine, "mvn", "node", "npm", "chromium", "etcd")
    give(machine, "apt-get")
    machine.put("id", "echo 0")
    done = machine.setup("run")
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(line.startswith("apt-get") for line in machine.log)
    assert len(pip_calls(machine)) == 2
    log = machine.log
    assert machine.setup("run").stdout == ""
    assert machine.log == log
    assert machine.setup(CI="true").returncode == 0
    assert "apt-get install -y -qq --no-install-recommends chromium" in machine.log
    assert len(pip_calls(machine)) == 2, "the packages are there already"
    log = machine.log
    for word in ("run", "tests"):
        machine.setup(word)
    assert machine.log == log


def test_an_old_java_does_not_count(machine: Machine) -> None:
    machine.put("java", """echo 'java version "1.8.0_202"' >&2""")
    assert machine.setup().stderr.startswith("Please install a JDK 17 or newer (")
    machine.put("java", """echo 'openjdk version "21" 2023-09-19' >&2""")
    assert machine.setup(CI="true").returncode == 0


@pytest.mark.parametrize("how", ["absent", "too old, or without venv"])
def test_without_a_python_nothing_is_made(machine: Machine, how: str) -> None:
    if how == "absent":
        remove(machine, "python3")
    done = machine.setup(PYTHON_UNFIT="1")
    assert done.returncode == 1
    assert done.stderr.startswith("Please install Python 3.11 or newer with venv (")
    assert done.stderr.count("\n") == 1
    assert not (machine.checkout / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    machine.put("python3", "exit 1")
    machine.put("python3.12", PYTHON)
    assert machine.setup().returncode == 0
    assert len(pip_calls(machine)) == 2


def test_root_on_debian_gets_everything_installed(machine: Machine) -> None:
    remove(machine, *TOOLS)
    give(machine, "apt-get", "apt-cache")
    machine.put("id", "echo 0")
    done = machine.setup(CI="true")
    assert (done.returncode, done.stderr) == (0, "")
    asked = [line.split() for line in machine.log if line.startswith("apt-get")]
    assert asked[0] == ["apt-get", "update", "-qq"]
    packages = {word for line in asked[1:] for word in line[2:] if not word.startswith("-")}
    python, java = {"python3", "python3-venv"}, {"openjdk-21-jdk-headless", "maven"}
    assert packages == python | java | {"nodejs", "npm", "chromium", "etcd-server"}
    assert len(pip_calls(machine)) == 2


def test_only_what_is_missing_is_installed(machine: Machine) -> None:
    remove(machine, "mvn")
    give(machine, "apt-get", "sudo")
    assert machine.setup().stderr == ""
    installs = [line for line in machine.log if line.startswith("apt-get install")]
    assert installs == ["apt-get install -y -qq --no-install-recommends maven"]
    assert any(line.startswith("sudo -n") for line in machine.log)


def test_without_the_right_to_install_apt_is_not_called(machine: Machine) -> None:
    remove(machine, "mvn")
    give(machine, "apt-get")
    machine.put("sudo", "exit 1")
    assert machine.setup().stderr.startswith("Please install Maven (")
    assert not any(line.startswith("apt-get") for line in machine.log)


def test_a_package_that_cannot_be_had_ends_in_the_sentence(machine: Machine) -> None:
    remove(machine, "java", "javac", "mvn")
    give(machine, "apt-get")
    machine.put("apt-cache", "exit 1")
    machine.put("id", "echo 0")
    assert machine.setup().stderr.startswith("Please install a JDK 17 or newer (")


def test_macos_is_told_about_homebrew(machine: Machine) -> None:
    remove(machine, "java", "javac", "node")
    machine.put("uname", "echo Darwin")
    done = machine.setup()
    assert done.returncode == 0
    assert done.stderr == (
        "Please install a JDK 17 or newer, Node.js with npm (for example: brew install openjdk@17 node) "
        "and run `make setup` again.\n"
    )
