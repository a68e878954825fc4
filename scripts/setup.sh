#!/usr/bin/env bash
# Installs what is missing of scripts/apt-packages.txt (with --ci also what only CI wants), and fetches what is no
# package of it (scripts/fetch_xgrammar.sh, scripts/fetch_nanobind.sh). Asks for nothing and needs no network when
# everything is there; uses sudo only when not root.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
want_ci=0
[ "${1:-}" = "--ci" ] && want_ci=1

packages=()
section=""
while read -r package _; do
  case $package in
    "" | "#"*) ;;
    "["*) section=$package ;;
    *) if [ "$section" != "[ci]" ] || [ $want_ci = 1 ]; then packages+=("$package"); fi ;;
  esac
done <"$root/scripts/apt-packages.txt"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this system has no apt-get, so nothing is installed. The build needs (under their names in"
  echo "setup: Debian): ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
fetch() {
  "$root/scripts/fetch_xgrammar.sh"
  "$root/scripts/fetch_nanobind.sh"
}
if [ ${#missing[@]} = 0 ]; then
  fetch
  exit 0
fi

install=(apt-get install -y --no-install-recommends "${missing[@]}")
sudo=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing and neither root nor sudo is at hand to install them:" >&2
    echo "setup:   ${missing[*]}" >&2
    echo "setup: as root, run: apt-get update && ${install[*]}" >&2
    exit 3
  fi
  sudo=(sudo)
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# With an old package list the installation may still work: its own message is the one that matters.
"${sudo[@]}" apt-get update -qq || echo "setup: the package list could not be updated" >&2
unknown=()
for package in "${missing[@]}"; do
  [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ] || unknown+=("$package")
done
if [ ${#unknown[@]} != 0 ]; then
  echo "setup: this system has no packages of these names: ${unknown[*]}" >&2
  [ $want_ci = 0 ] || echo "setup: clang and the other tools of .ci/run, \`make format\` and \`make lint\` are Debian 12's" >&2
  exit 1
fi
if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" >/tmp/moesaic-setup.$$.log 2>&1; then
  tail -n 20 "/tmp/moesaic-setup.$$.log" >&2
  rm -f "/tmp/moesaic-setup.$$.log"
  echo "setup: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
rm -f "/tmp/moesaic-setup.$$.log"
fetch
