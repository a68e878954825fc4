#!/usr/bin/env bash
# The files of the Debian package that are made and not written: stage.sh PROGRAM DIRECTORY VERSION. Man pages and
# completions are of PROGRAM's help, the list of parts (SPDX) of what it links, change logs and dates of the last commit.
set -euo pipefail
program=$1 stage=$2 version=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
rm -rf "$stage"
doc=$stage/share/doc/moesaic
mkdir -p "$doc"

seconds=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
"$root/scripts/cli_docs.py" "$program" "$stage" "$(date -u -d "@$seconds" +%Y-%m-%d)"
"$root/scripts/sbom.py" "$doc" depends "$program"
cp "$here/copyright" "$doc/copyright"
cp "$root/CHANGELOG.md" "$doc/changelog"
cat >"$doc/changelog.Debian" <<TEXT
moesaic ($version-1) unstable; urgency=medium

  * Version $version: changelog.gz says what is new.

 -- Moesaic maintainers <maintainers@moesaic.invalid>  $(LC_ALL=C date -u -R -d "@$seconds")
TEXT
gzip -9n "$stage"/share/man/man1/*.1 "$doc/changelog" "$doc/changelog.Debian"
mkdir -p "$stage/share/lintian/overrides"
cp "$here/lintian-overrides" "$stage/share/lintian/overrides/moesaic"
find "$stage" -type d -exec chmod 755 {} +
find "$stage" -type f -exec chmod 644 {} +
