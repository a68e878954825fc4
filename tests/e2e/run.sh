#!/usr/bin/env bash
# Runs one end-to-end test file against a built server: run.sh BINARY MODEL_DIR TEST.py [unittest arguments].
# Exit code 77: skipped, with the reason on standard error.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export MOESAIC_E2E_BINARY=$1 MOESAIC_E2E_MODEL=$2
test=$3
shift 3
[ -x "$MOESAIC_E2E_BINARY" ] || { echo "no $MOESAIC_E2E_BINARY: build the target moesaic first" >&2; exit 1; }
python=$("$here/../../scripts/e2e_venv.sh")
# An OpenAI key or URL of the developer's must not reach the tests.
unset OPENAI_API_KEY OPENAI_BASE_URL
exec "$python" -B "$here/$test" -v "$@"
