#!/usr/bin/env bash
# The container image moesaic:VERSION of deploy/docker/Dockerfile, out of build/deb: build_image.sh [ARGUMENT...]. By
# buildah, podman or docker, whichever is there; arguments are that tool's (--build-arg BASE=..., --isolation chroot).
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(ls build/deb/*.deb 2>/dev/null | wc -l)" = 1 ] || { echo "image: no package in build/deb: make deb" >&2; exit 1; }
for tool in buildah podman docker; do
  command -v $tool >/dev/null && break
done
command -v $tool >/dev/null || { echo "image: none of buildah, podman and docker is here" >&2; exit 1; }
version=$(scripts/version.sh)
exec $tool build "$@" -t "moesaic:$version" -t moesaic:latest -f deploy/docker/Dockerfile build/deb
