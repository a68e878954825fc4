#!/usr/bin/env bash
# Puts nanobind, which the Python module is bound with, into build/third_party: the package of PyPI that
# scripts/nanobind.txt pins by version and hash. Asks for nothing and needs no network when it is there. Without it
# everything else builds.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
read -r pin hash < <(grep '^nanobind==' "$root/scripts/nanobind.txt")
version=${pin#nanobind==}
hash=${hash#--hash=sha256:}
third_party=$root/build/third_party
target=$third_party/nanobind-$version
# Moved there last, so that half an archive is no package.
[ -e "$target" ] && exit 0

mkdir -p "$third_party"
work=$(mktemp -d "$third_party/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
archive=${MOESAIC_NANOBIND_ARCHIVE:-}
if [ -z "$archive" ]; then
  echo "setup: fetching nanobind $version (Python module)"
  if ! python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
    ! "$work/venv/bin/pip" download --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
      --dest "$work" -r "$root/scripts/nanobind.txt" >>"$work/log" 2>&1; then
    tail -n 5 "$work/log" >&2
    echo "setup: nanobind could not be fetched from PyPI: the build goes on without the Python module. Elsewhere run" >&2
    echo "setup:   pip download --no-deps $pin" >&2
    echo "setup: and here: MOESAIC_NANOBIND_ARCHIVE=FILE scripts/fetch_nanobind.sh" >&2
    exit 0
  fi
  archive=$work/nanobind-$version-py3-none-any.whl
fi
if ! echo "$hash  $archive" | sha256sum --check --status; then
  echo "setup: $archive does not have the SHA-256 of scripts/nanobind.txt ($hash)" >&2
  exit 1
fi
mkdir "$work/package"
python3 -m zipfile -e "$archive" "$work/package"
mv "$work/package" "$target"
