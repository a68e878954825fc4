#!/usr/bin/env bash
# Prints the version, which stands in CMakeLists.txt alone: version.sh [COMMIT], of the working tree without one.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then git show "$1:CMakeLists.txt"; else cat CMakeLists.txt; fi |
  sed -n 's/^project(moesaic VERSION \([0-9.]*\).*/\1/p'
