// Attention, and scores of positions by an indexer, on the tile registers of AMX. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/amx_tiles.h"
//
#include "kernels/cpu/internal/amx_attention.h"
#include "kernels/cpu/internal/amx_indexer.h"
#include "kernels/cpu/internal/amx_tables.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic::internal {

constinit const AttendChunksKernel kAmxAttendChunks = [](const AttendArgs& args,
                                                         int64_t chunk_begin, int64_t chunk_end,
                                                         float* partials, int64_t chunk_stride,
                                                         float* scratch) {
  AmxAttendChunks(kAvx512Kernels, args, chunk_begin, chunk_end, partials, chunk_stride, scratch);
};

constinit const IndexScoresKernel kAmxIndexScores = [](const IndexScoreArgs& args) {
  AmxIndexScores(kAvx512Kernels, args);
};

}  // namespace moesaic::internal
