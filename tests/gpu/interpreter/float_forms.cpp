#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "tests/gpu/interpreter/elementwise.h"
#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/small_floats.h"

namespace moesaic::ptx {
namespace {

struct FusedMultiplyAdd {
  float operator()(float a, float b, float c) const { return std::fmaf(a, b, c); }
};
// Rounded down. The product of two floats is exact in double, and so is what the sum with the third
// loses (Knuth, "The Art of Computer Programming" 2, 4.2.2, theorem B).
struct FusedMultiplyAddDown {
  float operator()(float a, float b, float c) const {
    const double product = static_cast<double>(a) * b;
    const double sum = product + c;
    const double of_c = sum - product;
    const double lost = (product - (sum - of_c)) + (c - of_c);
    const auto nearest = static_cast<float>(sum);
    const bool above = nearest > sum || (nearest == sum && lost < 0);
    return above ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest;
  }
};
// Of two pairs of bf16 numbers, each rounded once. The product is exact in double. A sum that is
// not is made odd in float (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums"),
// so that rounding it again, to bf16, is rounding it once.
struct FusedMultiplyAddBfloat16 {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    return Half(a, b, c) | Half(a >> 16, b >> 16, c >> 16) << 16;
  }

 private:
  static uint32_t Half(uint32_t a, uint32_t b, uint32_t c) {
    const auto number = [](uint32_t bits) {
      return static_cast<double>(Bfloat16ToFloat(static_cast<uint16_t>(bits)));
    };
    const double sum = number(a) * number(b) + number(c);
    auto odd = static_cast<float>(sum);
    if (odd != sum && (std::bit_cast<uint32_t>(odd) & 1) == 0) {
      odd = std::nextafter(odd, odd < sum ? HUGE_VALF : -HUGE_VALF);
    }
    return FloatToBfloat16(odd);
  }
};
// Of a number and NaN it is the number.
struct LeastNumber {
  float operator()(float a, float b) const { return std::fmin(a, b); }
};
struct GreatestNumber {
  float operator()(float a, float b) const { return std::fmax(a, b); }
};
struct SquareRoot {
  float operator()(float a) const { return std::sqrt(a); }
};
struct Reciprocal {
  float operator()(float a) const { return 1.0f / a; }
};
// The machine's own is right to two units in the last place; this one is rounded from the exact
// value. kFlush: subnormal numbers, as argument or result, are zero.
template <bool kFlush>
struct PowerOfTwo {
  float operator()(float a) const {
    constexpr float kLeastNormal = std::numeric_limits<float>::min();
    if (kFlush && std::fabs(a) < kLeastNormal) a = 0;
    const auto power = static_cast<float>(std::exp2(static_cast<double>(a)));
    return kFlush && power < kLeastNormal ? 0 : power;
  }
};

// Comparisons: of a NaN all are false but those that say "or unordered".
struct LessEqualOrUnordered {
  bool operator()(float a, float b) const { return !(a > b); }
};
struct BothNumbers {
  bool operator()(float a, float b) const { return !std::isnan(a) && !std::isnan(b); }
};
struct SomeNan {
  bool operator()(float a, float b) const { return std::isnan(a) || std::isnan(b); }
};

}  // namespace

// There is no add.f32, sub.f32 and mul.f32: without a rounding mode whoever compiles the PTX
// further may fuse a product with a sum, so that bits would rest on his choice (nvcc --fmad=false).
void AddFloatForms(Forms& forms) {
  forms["add.rn.f32"] = {"4:44", Binary<float, std::plus<>>};
  forms["sub.rn.f32"] = {"4:44", Binary<float, std::minus<>>};
  forms["mul.rn.f32"] = {"4:44", Binary<float, std::multiplies<>>};
  forms["div.rn.f32"] = {"4:44", Binary<float, std::divides<>>};
  forms["fma.rn.f32"] = {"4:444", Ternary<float, FusedMultiplyAdd>};
  forms["fma.rm.f32"] = {"4:444", Ternary<float, FusedMultiplyAddDown>};
  forms["fma.rn.bf16x2"] = {"4:444", Ternary<uint32_t, FusedMultiplyAddBfloat16>};
  forms["neg.f32"] = {"4:4", Unary<float, std::negate<>>};
  forms["min.f32"] = {"4:44", Binary<float, LeastNumber>};
  forms["max.f32"] = {"4:44", Binary<float, GreatestNumber>};
  forms["sqrt.rn.f32"] = {"4:4", Unary<float, SquareRoot>};
  forms["rcp.rn.f32"] = {"4:4", Unary<float, Reciprocal>};
  forms["ex2.approx.f32"] = {"4:4", Unary<float, PowerOfTwo<false>>};
  forms["ex2.approx.ftz.f32"] = {"4:4", Unary<float, PowerOfTwo<true>>};
  forms["setp.eq.f32"] = {"p:44", Compare<float, std::equal_to<>>};
  forms["setp.lt.f32"] = {"p:44", Compare<float, std::less<>>};
  forms["setp.gt.f32"] = {"p:44", Compare<float, std::greater<>>};
  forms["setp.leu.f32"] = {"p:44", Compare<float, LessEqualOrUnordered>};
  forms["setp.num.f32"] = {"p:44", Compare<float, BothNumbers>};
  forms["setp.nan.f32"] = {"p:44", Compare<float, SomeNan>};
}

}  // namespace moesaic::ptx
