#!/usr/bin/env bash
# Runs the tests of the release build with another instruction set than the one that the kernels would take here:
# test_isa.sh {scalar,avx2,avx512,avx512_bf16,amx}... Says what it skips: what this CPU lacks, and its default, with
# which `make test` runs. The end-to-end tests do not run again: they are about protocols and files. With scalar kernels
# only the tests of models and of exactness run: the others do not care.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
program=build/release/bin/moesaic
# Minutes of searches, of failures and of texts, in which no kernel has a part.
same_everywhere='BatchPlannerTest.(PacketsAre|SaysWhatATenth)|ThroughputPlannerTest|ResolveBatchTest.ALongJob'
# These take their instruction sets as parameters.
same_everywhere+='|^Isas/'
same_everywhere+='|DenseLossTest|SimulatorTest|Json|Jinja|Tokenizer|BpeRun|Http|^Server|PropertyTest|LinkMover|Schema|Chat|Ptx'
scalar_tests='Exactness|Reference|GoldenHashes|Deferral|DenseSlices|ExpertRunner|Fp8|Rope|Sampler'

[ $# -gt 0 ] || { echo "test_isa.sh: give an instruction set, for example avx2" >&2; exit 2; }
default=$(env -u MOESAIC_ISA "$program" version | awk '$1 == "kernels" { print $2 }')
for isa in "$@"; do
  if ! answer=$(MOESAIC_ISA=$isa "$program" version 2>&1); then
    case $answer in
      *"cannot run it"*) echo "SKIPPED: the tests with $isa kernels: ${answer##*MOESAIC_ISA=}" ;;
      *) printf '%s\n' "$answer" >&2; exit 2 ;;
    esac
  elif [ "$isa" = "$default" ]; then
    echo "SKIPPED: the tests with $isa kernels: these are the default here, and \`make test\` runs with them"
  else
    echo "-- the tests with $isa kernels (the default here: $default)"
    only=(-LE e2e -E "$same_everywhere")
    [ "$isa" = scalar ] && only+=(-R "$scalar_tests")
    MOESAIC_ISA=$isa ctest --test-dir build/release --output-on-failure -j $((jobs + 1)) "${only[@]}"
  fi
done
