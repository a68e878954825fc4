#!/usr/bin/env bash
# Runs one test file of the Python module: run.sh BINARY MODEL_DIR PYTHONPATH TEST.py [unittest arguments].
# Exit code 77: skipped, with the reason on standard error.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
export MOESAIC_E2E_BINARY=$1 MOESAIC_E2E_MODEL=$2 PYTHONPATH=$3:$root/tests/e2e
# Settings of the developer's must not reach the tests.
for name in $(compgen -e MOESAIC_); do
  case $name in MOESAIC_E2E_* | MOESAIC_ISA) ;; *) unset "$name" ;; esac
done
test=$4
shift 4
python=$("$root/scripts/e2e_venv.sh")
exec "$python" -B "$here/$test" -v "$@"
