// How an instruction whose lanes do not look at each other is carried out: an operation on values,
// applied to the lanes of its registers.
#pragma once

#include <cstdint>

#include "tests/gpu/interpreter/warp.h"

namespace moesaic::ptx {

template <typename T, typename Operation>
void Unary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<T>(instruction.to[0]);
  const auto* const a = warp.From<T>(instruction.from[0]);
  ForLanesApart(lanes, [=](int lane) { to[lane] = Operation()(static_cast<T>(a[lane])); });
}

template <typename T, typename Operation, typename Second = T>
void Binary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<T>(instruction.to[0]);
  const auto* const a = warp.From<T>(instruction.from[0]);
  const auto* const b = warp.From<Second>(instruction.from[1]);
  ForLanesApart(lanes, [=](int lane) {
    to[lane] = Operation()(static_cast<T>(a[lane]), static_cast<Second>(b[lane]));
  });
}

template <typename T, typename Operation>
void Ternary(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<T>(instruction.to[0]);
  const auto* const a = warp.From<T>(instruction.from[0]);
  const auto* const b = warp.From<T>(instruction.from[1]);
  const auto* const c = warp.From<T>(instruction.from[2]);
  ForLanesApart(lanes, [=](int lane) {
    to[lane] =
        Operation()(static_cast<T>(a[lane]), static_cast<T>(b[lane]), static_cast<T>(c[lane]));
  });
}

// Sets a predicate.
template <typename T, typename Operation>
void Compare(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const auto* const a = warp.From<T>(instruction.from[0]);
  const auto* const b = warp.From<T>(instruction.from[1]);
  uint32_t result =
      0;  // of lanes that are not asked for too: what their registers have is a number
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool holds = Operation()(static_cast<T>(a[lane]), static_cast<T>(b[lane]));
    result |= static_cast<uint32_t>(holds) << lane;
  }
  uint32_t& to = warp.ToPredicate(instruction.to[0]);
  to = (to & ~lanes) | (result & lanes);
}

}  // namespace moesaic::ptx
