#!/usr/bin/env bash
# Builds every fuzz target and runs each for SECONDS on its corpus: fuzz.sh [SECONDS] [TARGET...]. What
# makes one fail is kept under build/fuzz/failures.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
shift || true

cmake --preset asan >/dev/null || { cmake --preset asan; exit 1; }
cmake --build --preset asan -j "${JOBS:-$(nproc)}" --target fuzzers

failures=$PWD/build/fuzz/failures
mkdir -p "$failures"
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(ls build/asan/fuzz); fi
for target in "${targets[@]}"; do
  # The committed corpus is only read; what is found goes to a scratch directory.
  found=build/fuzz/corpus/$target
  mkdir -p "$found"
  corpus=tests/fuzz/corpus/${target#fuzz_}
  printf '== %s, %s s\n' "$target" "$seconds"
  args=("$found")
  [ -d "$corpus" ] && args+=("$corpus")
  log=build/fuzz/$target.log
  if ! "build/asan/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
    -artifact_prefix="$failures/$target-" "${args[@]}" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz: $target failed; the input is under $failures"
    exit 1
  fi
  grep -E '^Done|DONE' "$log" | tail -n 1
done
