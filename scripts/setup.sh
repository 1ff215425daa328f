#!/usr/bin/env bash
# Prepares this checkout: finds the tools or installs them, makes .venv, installs the pinned packages and Skylark.
# With the word `run` it leaves out what only tests need: Maven, Node.js, Chromium, etcd and libfaketime.
# Running it again does nothing, unless requirements.lock, pyproject.toml or this script has changed.
# PYTHON=… chooses the interpreter. Without Java, Maven, Node.js, Chromium, etcd or libfaketime only tests that need
# them are skipped, except under CI, where every test must run.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-tests}
stamp=$(cat requirements.lock pyproject.toml scripts/setup.sh | cksum)

# Whether this was done before: for tests, or at least for running.
is_done_for() {
  [ -x .venv/bin/python ] && [ "$(cat ".venv/.$1-stamp" 2>/dev/null)" = "$stamp" ]
}

if is_done_for setup || { [ "$purpose" = run ] && is_done_for run; }; then
  exit 0
fi

usable_python() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11; do
    if usable_python "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

has_jdk() {
  command -v java javac >/dev/null || return 1
  local major
  major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 17 ]
}

missing_tools() {
  find_python >/dev/null || echo python
  has_jdk || echo jdk
  [ "$purpose" = run ] && return
  command -v mvn >/dev/null || echo maven
  { command -v node && command -v npm; } >/dev/null || echo node
  command -v chromium >/dev/null || echo browser
  command -v etcd >/dev/null || echo etcd
  [ "$(uname -s)" != Linux ] || compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || echo faketime
}

may_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install() {
  echo "Installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_tool() {
  local version
  case $1 in
    python) install python3 python3-venv && find_python >/dev/null || install python3.11 python3.11-venv ;;
    jdk)
      for version in 17 21 25; do
        if apt-cache show "openjdk-$version-jdk-headless" >/dev/null 2>&1; then
          install "openjdk-$version-jdk-headless"
          return
        fi
      done
      ;;
    maven) install maven ;;
    node) install nodejs npm ;;
    browser) install chromium ;;
    etcd) install etcd-server ;;
    faketime) install libfaketime ;;
  esac
}

# One sentence that says what is missing and how to get it.
plea() {
  local tool names='' packages='' command
  for tool in "$@"; do
    case $tool in
      python) names="$names, Python 3.11 or newer with venv" packages="$packages python3 python3-venv" ;;
      jdk) names="$names, a JDK 17 or newer" packages="$packages openjdk-17-jdk-headless" ;;
      maven) names="$names, Maven" packages="$packages maven" ;;
      node) names="$names, Node.js with npm" packages="$packages nodejs npm" ;;
      browser) names="$names, Chromium" packages="$packages chromium" ;;
      etcd) names="$names, etcd" packages="$packages etcd-server" ;;
      faketime) names="$names, libfaketime" packages="$packages libfaketime" ;;
    esac
  done
  if [ "$(uname -s)" = Darwin ]; then
    packages=$(echo "$packages" | sed -e 's/python3 python3-venv/python@3.12/' -e 's/openjdk-17-jdk-headless/openjdk@17/' \
      -e 's/nodejs npm/node/' -e 's/etcd-server/etcd/')
    command="brew install$packages"
  else
    command="apt-get install$packages"
  fi
  echo "Please install ${names#, } (for example: $command) and run \`make setup\` again."
}

missing=$(missing_tools)
if [ -n "$missing" ] && may_install; then
  as_root apt-get update -qq || true
  for tool in $missing; do
    install_tool "$tool" || true
  done
  missing=$(missing_tools)
fi
if [ -n "$missing" ]; then
  # shellcheck disable=SC2086  # one word per tool
  plea $missing >&2
  case $missing in
    *python*) exit 1 ;;
  esac
  [ -z "${CI:-}" ] || exit 1
fi

if ! is_done_for run; then
  if ! usable_python .venv/bin/python; then
    "$(find_python)" -m venv --clear .venv
  fi
  echo "Installing the pinned packages into .venv, about a gigabyte the first time: that takes some minutes"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
  echo "$stamp" >.venv/.run-stamp
fi
[ "$purpose" = run ] || echo "$stamp" >.venv/.setup-stamp
