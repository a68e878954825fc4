#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/gpu/interpreter/elementwise.h"
#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/small_floats.h"

namespace moesaic::ptx {
namespace {

struct Same {
  template <typename T>
  T operator()(T a) const {
    return a;
  }
};

// Several registers side by side in one.
void Pack(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int bits = instruction.to[0].lane_bytes * 8 / instruction.sources;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  ForLanes(lanes, [&](int lane) {
    uint64_t value = 0;
    for (int i = 0; i < instruction.sources; ++i) {
      value |= (warp.Raw(instruction.from[i], lane) & mask) << (bits * i);
    }
    warp.SetRaw(instruction.to[0], lane, value);
  });
}
void Unpack(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const int bits = instruction.from[0].lane_bytes * 8 / instruction.targets;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  ForLanes(lanes, [&](int lane) {
    const uint64_t value = warp.Raw(instruction.from[0], lane);
    for (int i = 0; i < instruction.targets; ++i) {
      warp.SetRaw(instruction.to[i], lane, value >> (bits * i) & mask);
    }
  });
}

template <typename T>
void Select(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<T>(instruction.to[0]);
  const auto* const a = warp.From<T>(instruction.from[0]);
  const auto* const b = warp.From<T>(instruction.from[1]);
  const uint32_t first = warp.FromPredicate(instruction.from[2]);
  ForLanesApart(lanes, [=](int lane) { to[lane] = (first >> lane & 1) != 0 ? a[lane] : b[lane]; });
}

template <typename Operation>
void OfPredicates(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t a = warp.FromPredicate(instruction.from[0]);
  const uint32_t b = instruction.sources > 1 ? warp.FromPredicate(instruction.from[1]) : 0;
  uint32_t& to = warp.ToPredicate(instruction.to[0]);
  to = (to & ~lanes) | (Operation()(a, b) & lanes);
}
struct First {
  uint32_t operator()(uint32_t a, uint32_t) const { return a; }
};
struct Opposite {
  uint32_t operator()(uint32_t a, uint32_t) const { return ~a; }
};

// Between integers, whose registers may be wider than they are: what is read is the low part, and
// the result is extended by its sign, if it has one.
template <typename To, typename From>
void ConvertInteger(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  ForLanes(lanes, [&](int lane) {
    const auto value = static_cast<To>(static_cast<From>(warp.Raw(instruction.from[0], lane)));
    uint64_t bits = static_cast<std::make_unsigned_t<To>>(value);
    if (std::is_signed_v<To>) bits = static_cast<uint64_t>(static_cast<int64_t>(value));
    warp.SetRaw(instruction.to[0], lane, bits);
  });
}

template <typename From>
void ConvertToFloat(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<float>(instruction.to[0]);
  const auto* const from = warp.From<From>(instruction.from[0]);
  ForLanesApart(lanes,
                [=](int lane) { to[lane] = static_cast<float>(static_cast<From>(from[lane])); });
}

// Between 0 and 1; NaN becomes 0.
struct Saturated {
  float operator()(float a) const { return std::isnan(a) ? 0.0f : std::clamp(a, 0.0f, 1.0f); }
};

void FromHalf(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<float>(instruction.to[0]);
  const auto* const from = warp.From<uint16_t>(instruction.from[0]);
  ForLanesApart(lanes,
                [=](int lane) { to[lane] = HalfToFloat(static_cast<uint16_t>(from[lane])); });
}
void ToBfloat16(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<uint16_t>(instruction.to[0]);
  const auto* const from = warp.From<float>(instruction.from[0]);
  ForLanesApart(lanes, [=](int lane) { to[lane] = FloatToBfloat16(from[lane]); });
}

}  // namespace

void AddMoveForms(Forms& forms) {
  forms["mov.u16"] = {"4:4", Unary<uint16_t, Same>};
  for (const char* name : {"mov.u32", "mov.b32", "mov.f32"}) {
    forms[name] = {"4:4", Unary<uint32_t, Same>};
  }
  // There is one address space for device and host, so that these addresses are the same.
  for (const char* name : {"mov.u64", "mov.b64", "cvta.to.global.u64"}) {
    forms[name] = {"8:8", Unary<uint64_t, Same>};
  }
  forms["mov.b32 pack"] = {"4:44", Pack};
  forms["mov.b64 pack"] = {"8:44", Pack};
  forms["mov.b32 unpack"] = {"44:4", Unpack};
  forms["mov.b64 unpack"] = {"44:8", Unpack};
  forms["mov.pred"] = {"p:p", OfPredicates<First>};
  forms["not.pred"] = {"p:p", OfPredicates<Opposite>};
  forms["and.pred"] = {"p:pp", OfPredicates<std::bit_and<>>};
  forms["or.pred"] = {"p:pp", OfPredicates<std::bit_or<>>};
  forms["selp.u16"] = {"4:44p", Select<uint16_t>};
  for (const char* name : {"selp.u32", "selp.b32", "selp.f32"}) {
    forms[name] = {"4:44p", Select<uint32_t>};
  }
  forms["cvt.s64.s32"] = {"*:*", ConvertInteger<int64_t, int32_t>};
  forms["cvt.u64.u32"] = {"*:*", ConvertInteger<uint64_t, uint32_t>};
  forms["cvt.u32.u64"] = {"*:*", ConvertInteger<uint32_t, uint64_t>};
  forms["cvt.u16.u32"] = {"*:*", ConvertInteger<uint16_t, uint32_t>};
  forms["cvt.rn.f32.u16"] = {"4:4", ConvertToFloat<uint16_t>};
  forms["cvt.rn.f32.u32"] = {"4:4", ConvertToFloat<uint32_t>};
  forms["cvt.rn.f32.s64"] = {"4:8", ConvertToFloat<int64_t>};
  forms["cvt.sat.f32.f32"] = {"4:4", Unary<float, Saturated>};
  forms["cvt.f32.f16"] = {"4:4", FromHalf};
  forms["cvt.rn.bf16.f32"] = {"4:4", ToBfloat16};
}

}  // namespace moesaic::ptx
