#!/usr/bin/env bash
# Runs the tests of the release build with another instruction set than the one that the kernels would take here:
# test_isa.sh {scalar,avx2,avx512,avx512_bf16,amx}... Says what it skips: what this CPU lacks, and its default, with
# which `make test` runs. The end-to-end tests do not run again: they are about protocols and files; nor do those that
# go through all instruction sets themselves (label `instruction_sets`: kernels, models). Of instruction sets with the
# same numerics (`moesaic version` names them) the first one runs the rest. With the others, and with scalar kernels,
# which take minutes for what others do in seconds, the tests of exactness run: those hold that the bits are the same, and
# then the rest sees nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
program=build/release/bin/moesaic
# Minutes of searches, of failures and of texts, in which no kernel has a part.
same_everywhere='BatchPlannerTest.(PacketsAre|SaysWhatATenth)|ThroughputPlannerTest|ResolveBatchTest.ALongJob'
same_everywhere+='|DeviceExactnessTest|DenseLossTest|CudaBatch(Loss)?Test|CudaEngineTest|SimulatorTest|Json|Jinja|Tokenizer|BpeRun|Http|^Server|PropertyTest|LinkMover|Schema|Chat|Ptx'
exactness='Exactness|Reference|CudaBatchBits|Recurrent'

[ $# -gt 0 ] || { echo "test_isa.sh: give an instruction set, for example avx2" >&2; exit 2; }
# "avx2 (f32 activations)"
kernels() { sed -n 's/^ *kernels *//p'; }
default=$(env -u MOESAIC_ISA "$program" version | kernels)
numerics_run=" ${default#* } "
for isa in "$@"; do
  if ! answer=$(MOESAIC_ISA=$isa "$program" version 2>&1); then
    case $answer in
      *"cannot run it"*) echo "SKIPPED: the tests with $isa kernels: ${answer##*MOESAIC_ISA=}" ;;
      *) printf '%s\n' "$answer" >&2; exit 2 ;;
    esac
  elif [ "$isa" = "${default%% *}" ]; then
    echo "SKIPPED: the tests with $isa kernels: these are the default here, and \`make test\` runs with them"
  else
    echo "-- the tests with $isa kernels (the default here: $default)"
    only=(-LE 'e2e|instruction_sets' -E "$same_everywhere")
    numerics=$(kernels <<<"$answer")
    numerics=${numerics#* }
    if [ "$isa" = scalar ] || [[ $numerics_run == *"$numerics"* ]]; then
      only+=(-R "$exactness")
    fi
    numerics_run+="$numerics "
    MOESAIC_ISA=$isa scripts/run_tests.sh build/release "${only[@]}"
  fi
done
