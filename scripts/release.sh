#!/usr/bin/env bash
# Everything that is published, from a tag: release.sh vVERSION. In build/dist/VERSION then: the wheel, the Debian package,
# the bundle, the source, their lists of parts (SPDX) and SHA256SUMS. It is built in a checkout of the tag below
# build/dist, of committed files only, and each part is checked by its own script. `release.sh --trial` takes the
# last commit, without a tag.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
what=${1:-}
[ -n "$what" ] || { echo "usage: release.sh vVERSION | --trial" >&2; exit 2; }
[ "$what" = --trial ] && commit=HEAD || commit=refs/tags/$what
git rev-parse --verify --quiet "$commit^{commit}" >/dev/null || { echo "release: there is no tag $what" >&2; exit 1; }

version=$(scripts/version.sh "$commit")
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "release: CMakeLists.txt has no version of three numbers" >&2; exit 1; }
if [ "$what" != --trial ]; then
  [ "$what" = "v$version" ] || { echo "release: the tag $what is of a commit whose version is $version" >&2; exit 1; }
  git show "$commit:CHANGELOG.md" | grep -q "^## \[*$version" ||
    { echo "release: CHANGELOG.md has no heading for $version" >&2; exit 1; }
fi

dist=$root/build/dist/$version
source=$root/build/dist/source
rm -rf "$dist" "$source"
mkdir -p "$dist"
git clone --quiet --shared "$root" "$source"
git -C "$source" checkout --quiet --detach "$(git rev-parse "$commit^{commit}")"
cd "$source"
# What was fetched is there already, with hashes that the scripts check.
[ ! -d "$root/build/third_party" ] || { mkdir -p build && cp -r "$root/build/third_party" build/; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

scripts/build_wheel.sh
scripts/build_deb.sh
scripts/bundle.sh release
cp build/wheel/*.whl build/deb/*.deb build/bundle/*.tar.xz "$dist/"
git archive --format=tar --prefix="moesaic-$version/" HEAD | gzip -9n >"$dist/moesaic-$version.tar.gz"
# Beside the packages, too, for those who look before they install.
python3 - "$dist" <<'PY'
import pathlib, subprocess, sys, zipfile

dist = pathlib.Path(sys.argv[1])
(wheel,) = dist.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith("sboms/moesaic.spdx.json")]
    (dist / f"{wheel.name}.spdx.json").write_bytes(archive.read(name))
(deb,) = dist.glob("*.deb")
tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
member = "./usr/share/doc/moesaic/moesaic.spdx.json"
sbom = subprocess.run(["tar", "-xO", member], input=tar, check=True, capture_output=True).stdout
(dist / f"{deb.name}.spdx.json").write_bytes(sbom)
PY
cp build/bundle/*/share/doc/moesaic/moesaic.spdx.json "$dist/$(basename build/bundle/*.tar.xz).spdx.json"
cd "$dist"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
