#!/usr/bin/env bash
# Installs the package of scripts/build_deb.sh in an empty root of this Debian release, uses it there, and removes it again:
# test_deb.sh [ROOT.tar]. As root; needs mmdebstrap and a mirror, or a tarball that mmdebstrap has written.
set -euo pipefail
cd "$(dirname "$0")/.."
deb=$(ls build/deb/*.deb)
[ "$(id -u)" = 0 ] || { echo "test_deb: run it as root" >&2; exit 1; }
work=$(mktemp -d /var/tmp/moesaic-deb.XXXXXX)
trap 'umount "$work/root/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/root"
if [ -n "${1:-}" ]; then
  tar -C "$work/root" -xf "$1"
else
  . /etc/os-release
  mmdebstrap --quiet --variant=minbase "$VERSION_CODENAME" "$work/root.tar"
  tar -C "$work/root" -xf "$work/root.tar"
fi
root=$work/root
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
files() { (cd "$root" && find etc usr var/lib/systemd lib -xdev 2>/dev/null | grep -Ev '__pycache__|/ld.so.cache$' | sort); }
mount -t proc proc "$root/proc"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$deb" "$root/tmp/moesaic.deb"
cp -r models/sample "$root/srv/sample"
# minbase leaves man pages out of packages.
rm -f "$root"/etc/dpkg/dpkg.cfg.d/*

inside apt-get -qq update
# Dependencies first, so that what the package itself leaves behind can be told.
inside apt-get -qq install -y --no-install-recommends /tmp/moesaic.deb man-db bash-completion >"$work/apt.log" 2>&1 ||
  { tail -n 20 "$work/apt.log" >&2; exit 1; }
inside apt-get -qq purge -y moesaic >/dev/null 2>&1
files >"$work/before"
inside dpkg -i /tmp/moesaic.deb >"$work/dpkg.log"

inside moesaic version
answer=$(inside moesaic run /srv/sample --raw "Once upon a time" --max-tokens 8 --temperature 0 2>/dev/null)
[ -n "$answer" ] || { echo "test_deb: the installed program says nothing" >&2; exit 1; }
inside moesaic serve --config /etc/moesaic/server.yaml --print-config | grep -q '^state-file: /var/lib/moesaic/state'
inside man -w moesaic moesaic-serve moesaic-trace-record >/dev/null
# A pipe to head would end man early.
inside man moesaic-serve 2>/dev/null | grep -c expert-memory >/dev/null
inside bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader moesaic; COMP_WORDS=(moesaic serve --dtype in)
  COMP_CWORD=3; _moesaic; [ "${COMPREPLY[*]}" = "int8 int4" ]'
inside moesaic serve --config server --print-config | grep -q '^log-format: json' # a preset of /usr/share/moesaic

# Configuration stays until it is purged.
echo 'max-queue: 7' >>"$root/etc/moesaic/server.yaml"
inside dpkg -r moesaic >/dev/null
grep -q 'max-queue: 7' "$root/etc/moesaic/server.yaml"
[ ! -e "$root/usr/bin/moesaic" ]
inside dpkg -P moesaic >/dev/null
files >"$work/after"
diff "$work/before" "$work/after" || { echo "test_deb: the files above are left, or are gone" >&2; exit 1; }
echo "test_deb: $deb was installed, used, removed and purged; nothing is left of it"
