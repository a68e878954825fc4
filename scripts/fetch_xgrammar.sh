#!/usr/bin/env bash
# Puts the sources of xgrammar, which structured output is built with, into build/third_party: the package of PyPI
# that scripts/xgrammar.txt pins by version and hash. Asks for nothing and needs no network when they are there. Without
# them everything else builds, and requests for structured output are refused.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/pinned_package.sh"
read_pin xgrammar
source=$third_party/xgrammar-$version
# Written last, so that half an archive is no source.
[ -e "$source/.complete" ] && exit 0

get_archive xgrammar "xgrammar-$version.tar.gz" "structured output" "--no-binary xgrammar" "--no-binary xgrammar" \
  "${MOESAIC_XGRAMMAR_ARCHIVE:-}"
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
