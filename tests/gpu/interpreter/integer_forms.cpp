#include <algorithm>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "tests/gpu/interpreter/elementwise.h"
#include "tests/gpu/interpreter/forms.h"

namespace moesaic::ptx {
namespace {

struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Greatest {
  template <typename T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct MultiplyAdd {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const { return a * b + c; }
};

// PTX ISA, prmt: bytes of a (0 to 3) and b (4 to 7) by the nibbles of the selector, whose upper bit
// fills the byte with the sign of the chosen one.
struct PermuteBytes {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    const uint64_t bytes = a | uint64_t{b} << 32;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibble = selector >> (4 * i) & 15u;
      uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7u))) & 0xffu;
      if (nibble >= 8) byte = (byte & 0x80u) != 0 ? 0xffu : 0u;
      result |= byte << (8 * i);
    }
    return result;
  }
};

// PTX ISA, bfi: b with so many of a's lower bits from a position on.
void InsertBits(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  ForLanes(lanes, [&](int lane) {
    const auto from = [&](size_t i) { return warp.From<uint32_t>(instruction.from[i])[lane]; };
    const uint32_t position = from(2) & 0xffu;
    const uint32_t length = from(3) & 0xffu;
    const uint64_t mask = ((uint64_t{1} << std::min(length, 32u)) - 1) << std::min(position, 32u);
    const uint64_t inserted = uint64_t{from(0)} << std::min(position, 32u);
    warp.To<uint32_t>(instruction.to[0])[lane] =
        static_cast<uint32_t>((inserted & mask) | (from(1) & ~mask));
  });
}

// A shift by the width of the register or more is one by the width.
template <typename T>
struct ShiftLeft {
  T operator()(T a, uint32_t by) const { return by < sizeof(T) * 8 ? a << by : 0; }
};
template <typename T>
struct ShiftRight {
  T operator()(T a, uint32_t by) const {
    constexpr uint32_t kBits = sizeof(T) * 8;
    if constexpr (std::is_signed_v<T>) {
      return a >> std::min(by, kBits - 1);
    } else {
      return by < kBits ? a >> by : 0;
    }
  }
};

// Of 32 bits to 64.
template <typename Narrow, typename Wide>
void MultiplyWide(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<Wide>(instruction.to[0]);
  const auto* const a = warp.From<Narrow>(instruction.from[0]);
  const auto* const b = warp.From<Narrow>(instruction.from[1]);
  ForLanesApart(lanes, [=](int lane) { to[lane] = static_cast<Wide>(a[lane]) * b[lane]; });
}

// Division by zero is unspecified, so that no kernel may do it. What overflows wraps.
template <typename T, bool kRemainder>
void Divide(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  auto* const to = warp.To<T>(instruction.to[0]);
  const auto* const a = warp.From<T>(instruction.from[0]);
  const auto* const b = warp.From<T>(instruction.from[1]);
  ForLanes(lanes, [&](int lane) {
    if (b[lane] == 0) warp.Fail(lane, "division by zero");
    if (std::is_signed_v<T> && b[lane] == static_cast<T>(-1)) {
      using Unsigned = std::make_unsigned_t<T>;
      to[lane] = kRemainder ? 0 : static_cast<T>(Unsigned{0} - static_cast<Unsigned>(a[lane]));
    } else {
      to[lane] = kRemainder ? a[lane] % b[lane] : a[lane] / b[lane];
    }
  });
}

void AddComparisons(Forms& forms) {
  forms["setp.eq.s16"] = {"p:44", Compare<int16_t, std::equal_to<>>};
  forms["setp.ne.s16"] = {"p:44", Compare<int16_t, std::not_equal_to<>>};
  forms["setp.eq.s32"] = {"p:44", Compare<int32_t, std::equal_to<>>};
  forms["setp.ne.s32"] = {"p:44", Compare<int32_t, std::not_equal_to<>>};
  forms["setp.lt.s32"] = {"p:44", Compare<int32_t, std::less<>>};
  forms["setp.le.s32"] = {"p:44", Compare<int32_t, std::less_equal<>>};
  forms["setp.gt.s32"] = {"p:44", Compare<int32_t, std::greater<>>};
  forms["setp.ge.s32"] = {"p:44", Compare<int32_t, std::greater_equal<>>};
  forms["setp.lt.u32"] = {"p:44", Compare<uint32_t, std::less<>>};
  forms["setp.gt.u32"] = {"p:44", Compare<uint32_t, std::greater<>>};
  forms["setp.eq.s64"] = {"p:88", Compare<int64_t, std::equal_to<>>};
  forms["setp.ne.s64"] = {"p:88", Compare<int64_t, std::not_equal_to<>>};
  forms["setp.lt.s64"] = {"p:88", Compare<int64_t, std::less<>>};
  forms["setp.le.s64"] = {"p:88", Compare<int64_t, std::less_equal<>>};
  forms["setp.gt.s64"] = {"p:88", Compare<int64_t, std::greater<>>};
  forms["setp.ge.s64"] = {"p:88", Compare<int64_t, std::greater_equal<>>};
  forms["setp.eq.b64"] = {"p:88", Compare<uint64_t, std::equal_to<>>};
  forms["setp.lt.u64"] = {"p:88", Compare<uint64_t, std::less<>>};
  forms["setp.gt.u64"] = {"p:88", Compare<uint64_t, std::greater<>>};
}

}  // namespace

// Sums and low halves of products have the same bits for signed numbers and for others.
void AddIntegerForms(Forms& forms) {
  forms["add.s32"] = {"4:44", Binary<uint32_t, std::plus<>>};
  forms["add.s64"] = forms["add.u64"] = {"8:88", Binary<uint64_t, std::plus<>>};
  forms["sub.s32"] = {"4:44", Binary<uint32_t, std::minus<>>};
  forms["sub.s64"] = {"8:88", Binary<uint64_t, std::minus<>>};
  forms["mul.lo.s32"] = {"4:44", Binary<uint32_t, std::multiplies<>>};
  forms["mul.lo.s64"] = {"8:88", Binary<uint64_t, std::multiplies<>>};
  forms["mul.wide.s32"] = {"8:44", MultiplyWide<int32_t, int64_t>};
  forms["mul.wide.u32"] = {"8:44", MultiplyWide<uint32_t, uint64_t>};
  forms["mad.lo.s32"] = {"4:444", Ternary<uint32_t, MultiplyAdd>};
  forms["prmt.b32"] = {"4:444", Ternary<uint32_t, PermuteBytes>};
  forms["bfi.b32"] = {"4:4444", InsertBits};
  forms["div.s32"] = {"4:44", Divide<int32_t, false>};
  forms["div.u32"] = {"4:44", Divide<uint32_t, false>};
  forms["div.s64"] = {"8:88", Divide<int64_t, false>};
  forms["div.u64"] = {"8:88", Divide<uint64_t, false>};
  forms["rem.s32"] = {"4:44", Divide<int32_t, true>};
  forms["rem.u32"] = {"4:44", Divide<uint32_t, true>};
  forms["rem.s64"] = {"8:88", Divide<int64_t, true>};
  forms["neg.s32"] = {"4:4", Unary<uint32_t, std::negate<>>};
  forms["neg.s64"] = {"8:8", Unary<uint64_t, std::negate<>>};
  forms["min.s32"] = {"4:44", Binary<int32_t, Least>};
  forms["max.s32"] = {"4:44", Binary<int32_t, Greatest>};
  forms["min.s64"] = {"8:88", Binary<int64_t, Least>};
  forms["max.s64"] = {"8:88", Binary<int64_t, Greatest>};
  forms["max.u64"] = {"8:88", Binary<uint64_t, Greatest>};
  forms["and.b32"] = {"4:44", Binary<uint32_t, std::bit_and<>>};
  forms["and.b64"] = {"8:88", Binary<uint64_t, std::bit_and<>>};
  forms["or.b32"] = {"4:44", Binary<uint32_t, std::bit_or<>>};
  forms["xor.b32"] = {"4:44", Binary<uint32_t, std::bit_xor<>>};
  forms["or.b64"] = {"8:88", Binary<uint64_t, std::bit_or<>>};
  forms["not.b32"] = {"4:4", Unary<uint32_t, std::bit_not<>>};
  forms["not.b64"] = {"8:8", Unary<uint64_t, std::bit_not<>>};
  forms["shl.b32"] = {"4:44", Binary<uint32_t, ShiftLeft<uint32_t>, uint32_t>};
  forms["shl.b64"] = {"8:84", Binary<uint64_t, ShiftLeft<uint64_t>, uint32_t>};
  forms["shr.u32"] = {"4:44", Binary<uint32_t, ShiftRight<uint32_t>, uint32_t>};
  forms["shr.s32"] = {"4:44", Binary<int32_t, ShiftRight<int32_t>, uint32_t>};
  forms["shr.u64"] = {"8:84", Binary<uint64_t, ShiftRight<uint64_t>, uint32_t>};
  forms["shr.s64"] = {"8:84", Binary<int64_t, ShiftRight<int64_t>, uint32_t>};
  AddComparisons(forms);
}

}  // namespace moesaic::ptx
