#!/usr/bin/env bash
# A directory and a tarball that run on another x86-64 Linux without our packages and without root:
# bundle.sh {release|cuda}. In it: the program, its libraries but for glibc and CUDA, the sample model,
# the presets, and of a cuda build the tests and benches for a GPU. What was made is checked: every
# library must come from the bundle, and the program must answer from there.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${JOBS:-$(nproc)}
most_mib=60 # of the tarball

build=build/$preset
targets=(moesaic)
[ "$preset" = cuda ] && targets+=(gpu_tests gpu_benches)
cmake --preset "$preset" >/dev/null || { cmake --preset "$preset"; exit 1; }
cmake --build --preset "$preset" -j "$jobs" --target "${targets[@]}"

version=$(scripts/version.sh)
name=moesaic-$version-linux-$(uname -m)
[ "$preset" = cuda ] && name+=-cuda
out=build/bundle
bundle=$out/$name
rm -rf "$bundle" "$bundle.tar.xz"
mkdir -p "$bundle/lib" "$bundle/share/moesaic/models/sample" "$bundle/share/doc/moesaic/licenses"

install -D -t "$bundle/bin" "$build/bin/moesaic"
[ "$preset" = cuda ] && install -t "$bundle/bin" "$build"/tests/gpu_*_test "$build"/bench/cuda_*_bench
strip --strip-unneeded "$bundle"/bin/*
cp -r configs "$bundle/share/moesaic/"
# The tests for a GPU compare with the reference.
[ "$preset" = cuda ] && unwanted=README.md || unwanted=reference
find models/sample -mindepth 1 -maxdepth 1 ! -name "$unwanted" -exec cp -r {} "$bundle/share/moesaic/models/sample/" \;
cp LICENSE "$bundle/share/doc/moesaic/"
# The list of parts, and licences of what the program is made of.
if command -v dpkg-query >/dev/null; then
  scripts/sbom.py "$bundle/share/doc/moesaic" contains "$build/bin/moesaic"
else
  echo "bundle: versions and licences of the libraries are not known without dpkg: the bundle has no list of parts" >&2
fi

# Belongs to the system that the bundle comes to: glibc, and CUDA with its driver.
of_the_system() {
  case $1 in
    linux-vdso.so.* | */ld-linux-* | ld-linux-* | libc.so.* | libm.so.* | libmvec.so.* | libdl.so.* | \
      libpthread.so.* | librt.so.* | libresolv.so.* | libcuda.so.* | libcudart.so.* | libcublas*.so.*) return 0 ;;
  esac
  return 1
}
ldd "$bundle"/bin/* | awk '/=>/ { print $1, $3 }' | sort -u | while read -r soname path; do
  of_the_system "$soname" && continue
  [ -n "$path" ] && [ "$path" != not ] || { echo "bundle: $soname is not on this machine" >&2; exit 1; }
  cp -L "$path" "$bundle/lib/$soname"
  if command -v dpkg-query >/dev/null; then
    file=$(readlink -f "$path")
    package=$(dpkg-query -S "$file" "${file#/usr}" 2>/dev/null | head -n 1 | cut -d: -f1 || true)
    [ -z "$package" ] || cp "/usr/share/doc/$package/copyright" "$bundle/share/doc/moesaic/licenses/$package"
  fi
done

glibc=$(objdump -T "$bundle"/bin/* "$bundle"/lib/* | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
cat >"$bundle/README.txt" <<TEXT
Moesaic $version for Linux on x86-64 with glibc ${glibc#GLIBC_} or newer. Nothing has to be installed:

  bin/moesaic run share/moesaic/models/sample "Once upon a time"
  bin/moesaic --help
TEXT
[ "$preset" = cuda ] && cat >>"$bundle/README.txt" <<TEXT

With an NVIDIA GPU (compute capability 8.0 or newer) and a driver for CUDA 13 (580 or newer):

  bin/gpu_device_test && bin/gpu_kernels_test && bin/gpu_model_test && bin/gpu_engine_test && bin/gpu_batch_test
  bin/moesaic run share/moesaic/models/sample "Once upon a time" --device-kind cuda --gpu-memory 8MiB
  bin/cuda_copy_bench; bin/cuda_kernels_bench

cuda_kernels_bench and --gpu-gemm cublas want cuBLAS 13 in the library path (LD_LIBRARY_PATH, or /usr/local/cuda/lib64).
TEXT

# As on a machine without our packages: nothing may be taken from this one but what the other has too.
strays=$(for program in "$bundle"/bin/*; do
  env -i ldd "$program" | awk '/=>/ { print $1, $3 }' | while read -r soname path; do
    of_the_system "$soname" && continue
    case $path in "$PWD/$bundle/"*) ;; *) echo "$(basename "$program"): $soname from $path" ;; esac
  done
done)
[ -z "$strays" ] || { printf 'bundle: not from the bundle:\n%s\n' "$strays" >&2; exit 1; }
moved=$(mktemp -d)
trap 'rm -rf "$moved"' EXIT
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T"$jobs" -3 >"$bundle.tar.xz"
tar -C "$moved" -xJf "$bundle.tar.xz"
run() { (cd "$moved/$name" && env -i "$@"); }
run bin/moesaic --version >/dev/null
answer=$(run bin/moesaic run share/moesaic/models/sample "Once upon a time" --max-tokens 8 2>/dev/null)
[ -n "$answer" ] || { echo "bundle: the unpacked program says nothing" >&2; exit 1; }

bytes=$(stat -c %s "$bundle.tar.xz")
printf '%s: %d MiB unpacked, %d MiB as a tarball, glibc %s\n' "$bundle.tar.xz" \
  "$(du -sm "$bundle" | cut -f1)" $((bytes >> 20)) "${glibc#GLIBC_}"
[ $((bytes >> 20)) -lt $most_mib ] || { echo "bundle: more than $most_mib MiB" >&2; exit 1; }
