#!/usr/bin/env bash
# Makes build/venv, a Python environment with the packages of tests/e2e/requirements.txt, unless it is there.
# Prints its Python. Exit code 77 with a reason when it cannot be made (no network, no venv module).
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=tests/e2e/requirements.txt
venv=$PWD/build/venv
want=$(sha256sum "$requirements" | cut -d' ' -f1)

skip() { echo "SKIPPED: $1" >&2; exit 77; }
ready() { [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" = "$want" ] && [ -x "$venv/bin/python" ]; }

mkdir -p build
exec 9>build/venv.lock
flock 9  # several tests may ask at once
if ! ready; then
  rm -rf "$venv"
  python3 -m venv "$venv" >&2 || skip "python3 -m venv failed; install python3-venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
    --only-binary :all: -r "$requirements" >&2 || skip "the clients cannot be had from PyPI"
  echo "$want" >"$venv/requirements.sha256"
fi
echo "$venv/bin/python"
