#!/usr/bin/env bash
# Puts the sources of xgrammar, which structured output is built with, into build/third_party: the package of PyPI
# that scripts/xgrammar.txt pins by version and hash. Asks for nothing and needs no network when they are there. Without
# them everything else builds, and requests for structured output are refused.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
read -r pin hash < <(grep '^xgrammar==' "$root/scripts/xgrammar.txt")
version=${pin#xgrammar==}
hash=${hash#--hash=sha256:}
third_party=$root/build/third_party
source=$third_party/xgrammar-$version
# Written last, so that half an archive is no source.
[ -e "$source/.complete" ] && exit 0

mkdir -p "$third_party"
work=$(mktemp -d "$third_party/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
archive=${MOESAIC_XGRAMMAR_ARCHIVE:-}
if [ -z "$archive" ]; then
  echo "setup: fetching xgrammar $version (structured output)"
  # pip wants to know what the package depends on, for which it makes an environment of the package's build tools.
  if ! python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
    ! "$work/venv/bin/pip" download --disable-pip-version-check --no-deps --no-binary xgrammar --require-hashes \
      --dest "$work" -r "$root/scripts/xgrammar.txt" >>"$work/log" 2>&1; then
    tail -n 5 "$work/log" >&2
    echo "setup: xgrammar could not be fetched from PyPI: the build goes on without structured output. Elsewhere run" >&2
    echo "setup:   pip download --no-deps --no-binary xgrammar $pin" >&2
    echo "setup: and here: MOESAIC_XGRAMMAR_ARCHIVE=FILE scripts/fetch_xgrammar.sh" >&2
    exit 0
  fi
  archive=$work/xgrammar-$version.tar.gz
fi
if ! echo "$hash  $archive" | sha256sum --check --status; then
  echo "setup: $archive does not have the SHA-256 of scripts/xgrammar.txt ($hash)" >&2
  exit 1
fi
tar -xzf "$archive" -C "$work"
for file in CMakeLists.txt 3rdparty/dlpack/include/dlpack/dlpack.h 3rdparty/picojson/picojson.h; do
  if [ ! -e "$work/xgrammar-$version/$file" ]; then
    echo "setup: $archive has no $file" >&2
    exit 1
  fi
done
touch "$work/xgrammar-$version/.complete"
rm -rf "$source"
mv "$work/xgrammar-$version" "$source"
