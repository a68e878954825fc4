// The products of kernels/cpu/internal/amx_products.h on emulated tile registers, on any CPU.
#include "tests/kernels/cpu/emulated_amx.h"

#include "kernels/cpu/internal/vec_scalar.h"
//
#include "kernels/cpu/internal/coded_scalar.h"
#include "kernels/cpu/internal/ints_scalar.h"
#include "tests/kernels/cpu/emulated_tiles.h"
//
#include "kernels/cpu/internal/quant_tiles.h"
#include "kernels/cpu/internal/tiles.h"
//
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/tables.h"
//
#include "kernels/cpu/internal/amx_attention.h"
#include "kernels/cpu/internal/amx_indexer.h"
#include "kernels/cpu/internal/amx_products.h"

namespace moesaic::testing_util {

CpuKernels WithEmulatedAmx(const CpuKernels& kernels) {
  CpuKernels table = kernels;
  table.numerics = NumericsClass::kAmxBf16;
  table.matmul = kAmxBf16.matmul;
  table.gate_up = kAmxBf16.gate_up;
  table.coded = kAmxCoded;
  table.attend_chunks = [](const AttendArgs& args, int64_t chunk_begin, int64_t chunk_end,
                           float* partials, int64_t chunk_stride, float* scratch) {
    AmxAttendChunks(KernelsFor(Isa::kScalar), args, chunk_begin, chunk_end, partials, chunk_stride,
                    scratch);
  };
  table.index_scores = [](const IndexScoreArgs& args) {
    AmxIndexScores(KernelsFor(Isa::kScalar), args);
  };
  table.quant_matmul = kAmxIntegers.matmul;
  table.quant_gate_up = kAmxIntegers.gate_up;
  return table;
}

bool EmulatedTilesAreReleased() { return !emulated_registers.configured; }

}  // namespace moesaic::testing_util
