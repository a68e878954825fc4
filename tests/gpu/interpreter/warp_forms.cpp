#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "tests/gpu/interpreter/block.h"
#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/small_floats.h"
#include "tests/gpu/interpreter/warp.h"

namespace moesaic::ptx {
namespace {

// Which lanes an instruction is for. Our kernels name all of them, always.
void CheckMembers(const Warp& warp, const Operand& members, uint32_t lanes) {
  ForLanes(lanes, [&](int lane) {
    if (warp.Raw(members, lane) != kAllLanes) warp.Fail(lane, "its mask has not all lanes");
  });
}

// PTX ISA, shfl.sync, pseudo code. What comes from a lane that has ended is undefined.
void ShuffleButterfly(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  CheckMembers(warp, instruction.from[3], lanes);
  uint32_t values[kLanes];
  ForLanes(lanes, [&](int lane) { values[lane] = warp.From<uint32_t>(instruction.from[0])[lane]; });
  uint32_t& in_range = warp.ToPredicate(instruction.to[1]);
  ForLanes(lanes, [&](int lane) {
    const uint32_t mask = warp.From<uint32_t>(instruction.from[1])[lane] & 31;
    const uint32_t control = warp.From<uint32_t>(instruction.from[2])[lane];
    const uint32_t segment = control >> 8 & 31;
    const auto own = static_cast<uint32_t>(lane);
    const uint32_t most = (own & segment) | (control & 31 & ~segment);
    uint32_t source = own ^ mask;
    const bool valid = source <= most;
    if (!valid) source = own;
    if ((lanes >> source & 1) == 0) {
      warp.Fail(lane, fmt::format("a value of thread {}, which has ended",
                                  warp.thread(static_cast<int>(source))));
    }
    warp.To<uint32_t>(instruction.to[0])[lane] = values[source];
    in_range = (in_range & ~(1u << lane)) | static_cast<uint32_t>(valid) << lane;
  });
}

// d = a b + c of 16 rows, 8 columns and 16 summands. Where they lie in the registers of the lanes:
// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type". In what order the machine
// sums, and how it rounds in between, is not specified; here the sum is as good as exact and is
// rounded once.
void MatrixProduct(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  if (lanes != kAllLanes) {
    warp.Fail(std::countr_zero(lanes), "a matrix product by a warp of which lanes have ended");
  }
  double a[16][16];
  double b[16][8];
  double sum[16][8];
  const auto pair = [&](int source, int lane) {
    const uint32_t bits = warp.From<uint32_t>(instruction.from[source])[lane];
    return std::pair<double, double>(Bfloat16ToFloat(static_cast<uint16_t>(bits)),
                                     Bfloat16ToFloat(static_cast<uint16_t>(bits >> 16)));
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4;
    const int t = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8;
      const int summand = t + i / 2 * 8;
      std::tie(a[row][summand], a[row][summand + 1]) = pair(i, lane);
      sum[g + i / 2 * 8][t + i % 2] = warp.From<float>(instruction.from[6 + i])[lane];
    }
    for (int i = 0; i < 2; ++i) std::tie(b[t + i * 8][g], b[t + i * 8 + 1][g]) = pair(4 + i, lane);
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      warp.To<float>(instruction.to[i])[lane] =
          static_cast<float>(sum[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
    }
  }
}

void WarpBarrier(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  CheckMembers(warp, instruction.from[0], lanes);
  ++warp.interval;
}

// Threads run one after another here and see each other's stores at once, so that a fence has
// nothing to do. It settles no order for the race check either, which takes accesses that need it
// to be volatile.
void Fence(Warp&, const Instruction&, uint32_t) {}

}  // namespace

void AddWarpForms(Forms& forms) {
  forms["bra"] = forms["bra.uni"] = {":", nullptr, Flow::kBranch};
  forms["ret"] = forms["exit"] = {":", nullptr, Flow::kExit};
  forms["bar.sync"] = {":4", nullptr, Flow::kBarrier};
  forms["bar.warp.sync"] = {":4", WarpBarrier, Flow::kWarp};
  forms["membar.sys"] = {":", Fence};
  forms["shfl.sync.bfly.b32"] = {"4p:4444", ShuffleButterfly, Flow::kWarp};
  forms["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {"4444:4444444444", MatrixProduct,
                                                                  Flow::kWarp};
}

}  // namespace moesaic::ptx
