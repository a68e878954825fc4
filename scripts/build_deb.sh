#!/usr/bin/env bash
# The Debian package of the release build: build/deb/moesaic_VERSION-1_ARCH.deb, for the Debian release that builds it.
# Checked by lintian where that is installed. scripts/test_deb.sh installs it in a root of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${JOBS:-$(nproc)}
command -v dpkg-shlibdeps >/dev/null || {
  echo "deb: dpkg-shlibdeps is not here (apt-get install dpkg-dev)" >&2
  exit 1
}
cmake --preset "$preset" >/dev/null || { cmake --preset "$preset"; exit 1; }
cmake --build --preset "$preset" -j "$jobs" --target moesaic_deb_files

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
rm -rf "build/$preset/packages"
(cd "build/$preset" && cpack -G DEB >packages.log 2>&1) || { cat "build/$preset/packages.log" >&2; exit 1; }
mkdir -p build/deb
rm -f build/deb/*.deb
mv "build/$preset"/packages/*.deb build/deb/
deb=$(ls build/deb/*.deb)
printf '%s: %d KiB, %s\n' "$deb" $(($(stat -c %s "$deb") >> 10)) "$(dpkg-deb -f "$deb" Depends)"
if command -v lintian >/dev/null; then
  # As root it would rather be somebody else, but reads only what was just built.
  lintian --fail-on error,warning --no-cfg --allow-root "$deb"
else
  echo "deb: not checked: lintian is not here"
fi
