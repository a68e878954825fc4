#!/bin/sh
# check_isa_objects.sh OBJECT...: two things about the objects of the kernel sources (<isa>.cpp.o; others are
# passed over).
#
# 1. They define no weak symbol. A weak function compiled with AVX-512 may be the one copy that the linker keeps
#    for the whole program, and a CPU without AVX-512 then dies in, say, std::max.
# 2. They use the registers of their instruction set and none of a larger one, so that a forced instruction set
#    is the one that runs.
set -u
failed=0
fail() {
  echo "FAIL: $*"
  failed=1
}
checked=0
for object in "$@"; do
  isa=$(basename "$object" .cpp.o)
  case $isa in
    amx | scalar | avx2 | avx512 | avx512_bf16 | quant_*) checked=$((checked + 1)) ;;
    *) continue ;;
  esac
  [ -f "$object" ] || { fail "$object: no such file"; continue; }
  # V, W: weak definitions; v, w in lower case are undefined references, which are harmless. u: unique globals.
  # Sanitizers and DW.ref.* (exception tables) bring weak data of their own.
  weak=$(nm -C "$object" | grep -E '^[0-9a-f]+ [VWu] ' | grep -vE ' (DW\.ref\.|__asan|__odr_asan|__tsan|__ubsan)')
  [ -z "$weak" ] || fail "$isa: weak symbols: $weak"
  code=$(objdump -d --no-show-raw-insn "$object")
  uses() { printf '%s\n' "$code" | grep -qE "$1"; }
  case $isa in
    scalar | quant_scalar)
      if uses '%[yz]mm'; then fail "$isa uses ymm or zmm"; fi
      ;;
    avx2)
      uses '%ymm' || fail "avx2 does not use ymm"
      uses 'vfmadd' || fail "avx2 does not use fused multiply-adds"
      if uses '%zmm'; then fail "avx2 uses zmm"; fi
      ;;
    avx512)
      uses '%zmm' || fail "avx512 does not use zmm"
      if uses 'vdpbf16ps'; then fail "avx512 uses AVX512-BF16"; fi
      ;;
    quant_avx2)
      uses 'vpmaddubsw.*%ymm' || fail "quant_avx2 does not use vpmaddubsw"
      if uses '%zmm|vpdpbusd'; then fail "quant_avx2 uses zmm or vpdpbusd"; fi
      ;;
    quant_avx_vnni)
      uses 'vpdpbusd.*%ymm' || fail "quant_avx_vnni does not use vpdpbusd"
      if uses '%zmm'; then fail "quant_avx_vnni uses zmm"; fi
      ;;
    quant_avx512)
      uses 'vpmaddubsw.*%zmm' || fail "quant_avx512 does not use vpmaddubsw in zmm"
      if uses 'vpdpbusd'; then fail "quant_avx512 uses vpdpbusd"; fi
      ;;
    quant_avx512_vnni)
      uses 'vpdpbusd.*%zmm' || fail "quant_avx512_vnni does not use vpdpbusd"
      if uses 'vdpbf16ps'; then fail "quant_avx512_vnni uses AVX512-BF16"; fi
      ;;
    amx)
      uses 'tdpbf16ps' || fail "amx does not use tdpbf16ps"
      uses 'tdpbsud' || fail "amx does not use tdpbsud"
      if uses 'vdpbf16ps'; then fail "amx uses AVX512-BF16"; fi
      ;;
    avx512_bf16)
      uses 'vdpbf16ps' || fail "avx512_bf16 does not use vdpbf16ps"
      ;;
  esac
done
[ $checked -eq 10 ] || fail "$checked of 10 instruction sets found among the objects"
[ $failed -eq 0 ] && echo "PASS: $checked objects"
exit $failed
