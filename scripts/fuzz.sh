#!/usr/bin/env bash
# Builds fuzz targets (all, or those that are named) and runs each for SECONDS on its corpus: fuzz.sh [SECONDS]
# [TARGET...]; with FUZZ_RUNS=N for N inputs, however long they take. What makes one fail is kept under
# build/fuzz/failures.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
shift || true

cmake --preset asan >/dev/null || { cmake --preset asan; exit 1; }
cmake --build --preset asan -j "${JOBS:-$(nproc)}" --target "${@:-fuzzers}"

failures=$PWD/build/fuzz/failures
mkdir -p "$failures"
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(ls build/asan/fuzz); fi
# One target, its output at the end and in one piece: several run at once.
fuzz_one() {
  local target=$1 args bound found corpus log
  # The committed corpus is only read; what is found goes to a scratch directory.
  found=build/fuzz/corpus/$target
  mkdir -p "$found"
  corpus=tests/fuzz/corpus/${target#fuzz_}
  args=("$found")
  [ -d "$corpus" ] && args+=("$corpus")
  log=build/fuzz/$target.log
  if [ -n "${FUZZ_RUNS:-}" ]; then bound=(-runs="$FUZZ_RUNS"); else bound=(-max_total_time="$seconds"); fi
  if ! "build/asan/fuzz/$target" "${bound[@]}" -timeout=10 -rss_limit_mb=4096 \
    -artifact_prefix="$failures/$target-" "${args[@]}" >"$log" 2>&1; then
    printf '== %s failed; the input is under %s\n%s\n' "$target" "$failures" "$(tail -n 60 "$log")"
    return 255  # xargs starts no other
  fi
  printf '== %s: %s\n' "$target" "$(grep -E '^Done|DONE' "$log" | tail -n 1)"
}
export -f fuzz_one
export seconds failures
printf '%s\n' "${targets[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'fuzz_one {}'
