#!/usr/bin/env bash
# Puts nanobind, which the Python module is bound with, into build/third_party: the package of PyPI that
# scripts/nanobind.txt pins by version and hash. Asks for nothing and needs no network when it is there. Without it
# everything else builds.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/pinned_package.sh"
read_pin nanobind
target=$third_party/nanobind-$version
# Moved there last, so that half an archive is no package.
[ -e "$target" ] && exit 0

get_archive nanobind "nanobind-$version-py3-none-any.whl" "the Python module" "--only-binary :all:" "" \
  "${MOESAIC_NANOBIND_ARCHIVE:-}"
mkdir "$work/package"
python3 -m zipfile -e "$archive" "$work/package"
mv "$work/package" "$target"
