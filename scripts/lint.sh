#!/usr/bin/env bash
# clang-tidy over the sources, each on its own: lint.sh [FILE...]. Without files: all of them; with
# MOESAIC_LINT_SINCE=COMMIT: those that have changed since then, MOESAIC_LINT_MOST of them at most.
# MOESAIC_LINT_CHECKS is added to the checks of .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/lint
cmake --preset lint > /dev/null  # for the compile commands; nothing is built

if [ $# -gt 0 ]; then
  files=("$@")
elif [ -n "${MOESAIC_LINT_SINCE:-}" ]; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$MOESAIC_LINT_SINCE" -- '*.cpp')
else
  mapfile -t files < <(git ls-files '*.cpp')
fi

# Only what the build knows how to compile (fuzz targets and CUDA files have builds of their own).
selected=()
for file in "${files[@]}"; do
  if grep -q "\"file\": \"$PWD/$file\"" "$build/compile_commands.json"; then selected+=("$file"); fi
done
if [ ${#selected[@]} = 0 ]; then
  echo "lint: no file to check"
  exit 0
fi
if [ -n "${MOESAIC_LINT_MOST:-}" ] && [ ${#selected[@]} -gt "$MOESAIC_LINT_MOST" ]; then
  echo "lint: ${#selected[@]} files changed, checking the first $MOESAIC_LINT_MOST"
  selected=("${selected[@]:0:$MOESAIC_LINT_MOST}")
fi
printf '%s\n' "${selected[@]}" |
  xargs -P "$(nproc)" -n 2 clang-tidy-14 -p "$build" --quiet --checks="${MOESAIC_LINT_CHECKS:-}" 2> >(grep -v 'warnings generated' >&2)
echo "lint: ${#selected[@]} files are clean"
