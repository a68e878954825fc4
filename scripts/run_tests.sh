#!/usr/bin/env bash
# CTest on a build: run_tests.sh DIRECTORY [OPTION OF CTEST...]. Where CTest cannot read an expression (it reads at most nine
# groups) it would say so in a line and run everything; here that is an error. Some tests wait more than they compute: one
# more runs than there are cores.
set -euo pipefail
listed=$(ctest --test-dir "$1" -N "${@:2}" 2>&1)
if [[ $listed == *"Error in compile"* ]]; then
  echo "run_tests.sh: CTest cannot read an expression of: ${*:2}" >&2
  exit 1
fi
exec ctest --test-dir "$1" --output-on-failure -j $((${JOBS:-$(nproc)} + 1)) "${@:2}"
