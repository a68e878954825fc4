#!/usr/bin/env bash
# Installs the wheel of scripts/build_wheel.sh in an empty root of Debian that has only Python, uses module and command
# there, and removes it again: test_wheel.sh [ROOT.tar]. As root; needs mmdebstrap and a mirror, or a tarball that mmdebstrap
# has written with python3 and python3-venv in it. Nothing inside the root has a network: numpy comes as a wheel, too.
set -euo pipefail
cd "$(dirname "$0")/.."
most_mib=25
wheel=$(ls build/wheel/*.whl)
[ "$(id -u)" = 0 ] || { echo "test_wheel: run it as root" >&2; exit 1; }
work=$(mktemp -d /var/tmp/moesaic-wheel.XXXXXX)
trap 'umount "$work/root/proc" 2>/dev/null || true; rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"
if [ -n "${1:-}" ]; then
  tar -C "$root" -xf "$1"
else
  . /etc/os-release
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv "$VERSION_CODENAME" "$work/root.tar"
  tar -C "$root" -xf "$work/root.tar"
fi
mount -t proc proc "$root/proc"
# A network of its own, of loopback alone.
inside() {
  unshare --net sh -c 'ip link set lo up; exec "$@"' sh chroot "$root" env -i PATH=/venv/bin:/usr/bin:/bin HOME=/root "$@"
}

bytes=$(stat -c %s "$wheel")
printf '%s: %d.%d MiB\n' "$wheel" $((bytes >> 20)) $((bytes % (1 << 20) * 10 >> 20))
[ "$bytes" -le $((most_mib << 20)) ] || { echo "test_wheel: more than $most_mib MiB" >&2; exit 1; }
python3 -m zipfile -l "$wheel" >"$work/contents"

# The Python of the root decides which numpy that is.
version=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir "$root/srv/wheels"
cp "$wheel" "$root/srv/wheels/"
build/wheel/tools/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
  --dest "$root/srv/wheels" 'numpy>=1.24'
cp -r models/sample "$root/srv/sample"
mkdir "$root/srv/work" "$root/srv/work/models"
ln -s ../../sample "$root/srv/work/models/sample"
# The README's ten lines, as they stand there.
python3 - >"$root/srv/work/example.py" <<'PY'
import pathlib, re
(example,) = [
    block for block in re.findall(r"```python\n(.*?)```", pathlib.Path("README.md").read_text(), re.S)
    if block.startswith("from moesaic import LLM")
]
print(example)
PY
cat >"$root/srv/work/client.py" <<'PY'
import json, re, subprocess, urllib.request
server = subprocess.Popen(["moesaic", "serve", "/srv/sample", "--port", "0"], stderr=subprocess.PIPE, text=True)
try:
    url = ready = None
    for line in server.stderr:
        url = url or re.search(r"listens on (http://\S+)", line)
        ready = re.search(r"serving \S+ on", line)
        if ready:
            break
    assert url and ready, "the server does not begin"
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(url[1] + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        print(json.load(response)["choices"][0]["text"])
finally:
    server.terminate()
    server.stderr.close()
    assert server.wait(30) == 0, server.returncode
PY

dpkg_before=$(inside dpkg-query -W -f '${Package}\n' | sort | sha256sum)
inside python3 -m venv /venv
files() { (cd "$root/venv" && find . -not -type d -not -path '*/__pycache__*' | sort); } # pip leaves empty directories
inside python3 -m pip install --quiet --no-index --find-links /srv/wheels numpy
files >"$work/before"
inside python3 -m pip install --quiet --no-index --find-links /srv/wheels moesaic
# All libraries but those that every manylinux system has are of the wheel.
strays=$(cd "$root" && for file in venv/lib/python*/site-packages/moesaic/_core.*.so venv/lib/python*/site-packages/moesaic.libs/*.so* \
  venv/lib/python*/site-packages/moesaic.scripts/moesaic; do
  inside ldd "/$file" | awk -v file="$file" '/not found/ { print file ": " $0 } /=>/ { print $3 }' | while read -r path; do
    case $path in
      /venv/* | */libc.so.* | */libm.so.* | */libmvec.so.* | */libstdc++.so.* | */libgcc_s.so.* | */libz.so.* | */libpthread.so.* | */libdl.so.* | */librt.so.*) ;;
      *) echo "$file: $path" ;;
    esac
  done
done | sort -u)
[ -z "$strays" ] || { printf 'test_wheel: not from the wheel:\n%s\n' "$strays" >&2; exit 1; }

check() { # what, command...: it must print something
  local what=$1
  shift
  answer=$("$@" 2>"$work/log") || { cat "$work/log" >&2; echo "test_wheel: $what fails" >&2; exit 1; }
  [ -n "$answer" ] || { echo "test_wheel: $what says nothing" >&2; exit 1; }
  printf '%s: %s\n' "$what" "$(tail -n 1 <<<"$answer")"
}
check "moesaic version" inside moesaic version
first=
for isa in default avx512 avx2; do
  kernels=()
  if [ "$isa" != default ]; then
    grep -qw "${isa/avx512/avx512vl}" /proc/cpuinfo || { echo "SKIPPED: this CPU has no $isa"; continue; }
    kernels=(MOESAIC_ISA="$isa")
  fi
  check "README, $isa" inside env "${kernels[@]}" sh -c 'cd /srv/work && python3 example.py'
  grep -q 'experts in memory' <<<"$answer" || { echo "test_wheel: the README's lines say '$answer'" >&2; exit 1; }
  check "moesaic run, $isa" inside env "${kernels[@]}" moesaic run /srv/sample --raw "Once upon a time" --max-tokens 8 --temperature 0
  # Kernels of the two sets differ in the last bits, which these tokens do not depend on.
  first=${first:-$answer}
  [ "$answer" = "$first" ] || { echo "test_wheel: $isa answers '$answer'" >&2; exit 1; }
done
check "moesaic serve" inside python3 /srv/work/client.py
check "python3 -m moesaic" inside python3 -m moesaic version
check "a preset" inside moesaic serve --config server --print-config
# What was left out says so.
printf '%s\n' One Two Three >"$root/srv/work/prompts.txt"
check "moesaic trace record" inside moesaic trace record /srv/sample --prompts /srv/work/prompts.txt -o /srv/work/a.trace --max-tokens 4
if inside moesaic trace compact /srv/work/a.trace --capacity 1 -o /srv/work/a.state 2>"$work/log"; then
  echo "test_wheel: trace compact clusters without FAISS" >&2
  exit 1
fi
grep -q FAISS "$work/log" || { cat "$work/log" >&2; exit 1; }

find "$root/venv" -path '*/moesaic-*.dist-info/*' \( -name 'LICENSE*' -o -name '*.spdx.json' \) -printf '%f\n' | sort -u | tr '\n' ' '
echo
inside python3 -m pip uninstall --quiet --yes moesaic
files >"$work/after"
diff "$work/before" "$work/after" || { echo "test_wheel: the files above are left, or are gone" >&2; exit 1; }
[ "$dpkg_before" = "$(inside dpkg-query -W -f '${Package}\n' | sort | sha256sum)" ]
echo "test_wheel: $wheel was installed, used and removed where there is nothing but Python and numpy"
