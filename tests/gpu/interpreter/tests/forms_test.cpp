// Each form of an instruction whose lanes do not look at each other, against values worked out from
// the PTX ISA by hand.
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/tests/ptx_harness.h"

namespace moesaic::ptx {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kLow = 0xffffffff;  // the bits of a register of 32

uint64_t F(float value) { return std::bit_cast<uint32_t>(value); }
uint64_t S(int64_t value) { return static_cast<uint64_t>(value); }
uint64_t S32(int32_t value) { return static_cast<uint32_t>(value); }

// What a form makes of its sources: in each row the targets, then the sources, as its registers
// have them.
struct FormCase {
  std::string form;       // as in AllForms
  std::string registers;  // of its operands, when its shape leaves them open: "8:4"
  std::vector<std::vector<uint64_t>> rows;
};

std::vector<FormCase> IntegerCases() {
  constexpr uint64_t kTop = 0x80000000;
  constexpr uint64_t kTop64 = uint64_t{1} << 63;
  return {
      {"add.s32", "", {{12, 5, 7}, {0, kLow, 1}, {kTop, 0x7fffffff, 1}}},
      {"add.s64", "", {{12, 5, 7}, {0, S(-1), 1}, {uint64_t{1} << 32, kLow, 1}}},
      {"add.u64", "", {{12, 5, 7}, {0, S(-1), 1}}},
      {"sub.s32", "", {{S32(-2), 5, 7}, {0x7fffffff, kTop, 1}}},
      {"sub.s64", "", {{S(-2), 5, 7}, {kTop64 - 1, kTop64, 1}}},
      {"mul.lo.s32", "", {{S32(-15), S32(-3), 5}, {0, 0x10000, 0x10000}}},
      {"mul.lo.s64", "", {{S(-15), S(-3), 5}, {uint64_t{1} << 40, 1 << 20, 1 << 20}}},
      {"mul.wide.s32", "", {{S(-15), S32(-3), 5}, {uint64_t{1} << 40, 1 << 20, 1 << 20}}},
      {"mul.wide.u32", "", {{kLow * 5, kLow, 5}, {15, 3, 5}}},
      {"mad.lo.s32", "", {{S32(-14), S32(-3), 5, 1}, {7, 0x10000, 0x10000, 7}}},
      {"div.s32", "", {{S32(-2), S32(-7), 3}, {kTop, kTop, S32(-1)}, {2, 7, 3}}},
      {"div.u32", "", {{kLow / 3, kLow, 3}, {0, 1, kLow}}},
      {"div.s64", "", {{S(-2), S(-7), 3}, {kTop64, kTop64, S(-1)}, {kLow, kLow * 8, 8}}},
      {"div.u64", "", {{S(-1) / 3, S(-1), 3}, {0, 1, S(-1)}}},
      {"rem.s32", "", {{S32(-1), S32(-7), 3}, {0, kTop, S32(-1)}, {1, 7, S32(-3)}}},
      {"rem.u32", "", {{kLow % 10, kLow, 10}}},
      {"rem.s64", "", {{S(-1), S(-7), 3}, {0, kTop64, S(-1)}, {1, 7, S(-3)}}},
      {"neg.s32", "", {{S32(-5), 5}, {kTop, kTop}}},
      {"neg.s64", "", {{S(-5), 5}, {kTop64, kTop64}}},
      // Bytes of the first (0 to 3) and the second (4 to 7); from 8 on their signs.
      {"prmt.b32",
       "",
       {{0x44114400, 0x33221100, 0x77665544, 0x4140},
        {0x77003300, 0x33221100, 0x77665544, 0x7030},
        {0x000000ff, 0x80000000, 0x00665544, 0xffcb}}},
      {"bfi.b32",
       "",
       {{0xffff56ff, 0x3456, S32(-1), 8, 8},
        {0x56ffffff, 0x3456, S32(-1) >> 8, 24, 8},
        {7, 0x3456, 7, 32, 8},
        {7, 0x3456, 7, 3, 0}}},
      {"min.s32", "", {{S32(-5), S32(-5), 3}, {3, 3, 4}}},
      {"max.s32", "", {{3, S32(-5), 3}, {4, 3, 4}}},
      {"min.s64", "", {{S(-5), S(-5), 3}, {4, kLow + 1, 4}}},
      {"max.s64", "", {{3, S(-5), 3}, {kLow + 1, kLow + 1, 4}}},
      {"max.u64", "", {{S(-5), S(-5), 3}, {kLow + 1, kLow + 1, 4}}},
      {"and.b32", "", {{0x0a, 0x0f, 0xfa}}},
      {"and.b64",
       "",
       {{uint64_t{0xa} << 60, uint64_t{0xf} << 60, S(-1) << 63 | uint64_t{1} << 61}}},
      {"or.b32", "", {{0xff, 0x0f, 0xfa}}},
      {"xor.b32", "", {{0xf5, 0x0f, 0xfa}}},
      {"or.b64", "", {{S(-1), kLow, kLow << 32}}},
      {"not.b32", "", {{0xfffffff0, 0x0f}}},
      {"not.b64", "", {{~uint64_t{0x0f}, 0x0f}}},
      // Shifts by more than the register has are shifts by all of it.
      {"shl.b32", "", {{0x50, 0x5, 4}, {0, 5, 32}, {0, 5, kLow}, {kTop, 1, 31}}},
      {"shl.b64", "", {{uint64_t{5} << 40, 5, 40}, {0, 5, 64}, {0, 5, kLow}}},
      {"shr.u32", "", {{0xf, S32(-1), 28}, {0, S32(-1), 32}, {0, S32(-1), 100}}},
      {"shr.s32", "", {{S32(-1), kTop, 31}, {S32(-1), kTop, 32}, {3, 48, 4}, {0, 48, 99}}},
      {"shr.u64", "", {{0xf, S(-1), 60}, {0, S(-1), 64}}},
      {"shr.s64", "", {{S(-1), kTop64, 63}, {S(-1), kTop64, 64}, {3, 48, 4}}},
  };
}

std::vector<FormCase> ComparisonCases() {
  constexpr uint64_t kOther = uint64_t{7} << 16;  // what lies beside 16 bits does not count
  return {
      {"setp.eq.s16", "", {{1, 5, 5 | kOther}, {0, 5, 6}}},
      {"setp.ne.s16", "", {{0, 5, 5 | kOther}, {1, 5, 6}}},
      {"setp.eq.s32", "", {{1, 5, 5}, {0, 5, 6}}},
      {"setp.ne.s32", "", {{0, 5, 5}, {1, 5, 6}}},
      {"setp.lt.s32", "", {{1, S32(-5), 5}, {0, 5, S32(-5)}, {0, 5, 5}}},
      {"setp.le.s32", "", {{1, S32(-5), 5}, {0, 5, S32(-5)}, {1, 5, 5}}},
      {"setp.gt.s32", "", {{0, S32(-5), 5}, {1, 5, S32(-5)}, {0, 5, 5}}},
      {"setp.ge.s32", "", {{0, S32(-5), 5}, {1, 5, S32(-5)}, {1, 5, 5}}},
      {"setp.lt.u32", "", {{0, S32(-5), 5}, {1, 5, S32(-5)}, {0, 5, 5}}},
      {"setp.gt.u32", "", {{1, S32(-5), 5}, {0, 5, S32(-5)}, {0, 5, 5}}},
      {"setp.eq.s64", "", {{1, S(-5), S(-5)}, {0, 5, 5 | kLow << 32}}},
      {"setp.ne.s64", "", {{0, S(-5), S(-5)}, {1, 5, 5 | kLow << 32}}},
      {"setp.lt.s64", "", {{1, S(-5), 5}, {0, 5, S(-5)}, {0, 5, 5}}},
      {"setp.le.s64", "", {{1, S(-5), 5}, {0, 5, S(-5)}, {1, 5, 5}}},
      {"setp.gt.s64", "", {{0, S(-5), 5}, {1, 5, S(-5)}, {0, 5, 5}}},
      {"setp.ge.s64", "", {{0, S(-5), 5}, {1, 5, S(-5)}, {1, 5, 5}}},
      {"setp.eq.b64", "", {{1, S(-5), S(-5)}, {0, 5, 5 | kLow << 32}}},
      {"setp.lt.u64", "", {{0, S(-5), 5}, {1, 5, S(-5)}, {0, 5, 5}}},
      {"setp.gt.u64", "", {{1, S(-5), 5}, {0, 5, S(-5)}, {0, 5, 5}}},
      {"setp.eq.f32", "", {{1, F(0.0f), F(-0.0f)}, {0, F(kNan), F(kNan)}, {0, F(1), F(2)}}},
      {"setp.lt.f32", "", {{1, F(-1), F(1)}, {0, F(1), F(kNan)}, {0, F(1), F(1)}}},
      {"setp.gt.f32", "", {{0, F(-1), F(1)}, {0, F(1), F(kNan)}, {1, F(2), F(1)}}},
      {"setp.leu.f32",
       "",
       {{1, F(-1), F(1)}, {1, F(1), F(kNan)}, {0, F(2), F(1)}, {1, F(1), F(1)}}},
      {"setp.num.f32", "", {{1, F(1), F(2)}, {0, F(kNan), F(1)}, {0, F(1), F(kNan)}}},
      {"setp.nan.f32", "", {{0, F(1), F(2)}, {1, F(kNan), F(1)}, {1, F(1), F(kNan)}}},
  };
}

std::vector<FormCase> FloatCases() {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float above = std::nextafter(1.0f, 2.0f);  // 1 + 2^-23
  return {
      {"add.rn.f32", "", {{F(3), F(1), F(2)}, {F(1), F(1), F(0x1p-25f)}}},
      {"sub.rn.f32", "", {{F(-1), F(1), F(2)}, {F(0), F(1), F(1)}}},
      {"mul.rn.f32", "", {{F(6), F(2), F(3)}, {F(1 + 0x1p-22f), F(above), F(above)}}},
      {"div.rn.f32",
       "",
       {{F(0.5f), F(1), F(2)}, {F(1.0f / 3), F(1), F(3)}, {F(kInfinity), F(1), 0}}},
      // Rounded once: the product alone would lose 2^-46.
      {"fma.rn.f32",
       "",
       {{F(0x1p-46f), F(above), F(above), F(-(1 + 0x1p-22f))}, {F(7), F(2), F(3), F(1)}}},
      // 3 x 4 + 1 and 128 - 136; a subnormal number times 2^126; 256 + 1 and 257 + 2^-20 between
      // 256 and 258, the tie to even.
      {"fma.rn.bf16x2",
       "",
       {{0x4150c100, 0x40403f80, 0x40804300, 0x3f80c308},
        {0x3f003f00, 0x00400040, 0x7e807e80, 0x80008000},
        {0x43804381, 0x43804380, 0x3f803f80, 0x3f803f81}}},
      // 1 + 2^-30 to nearest and down is 1; 1 - 2^-30 to nearest is 1, down the number before it.
      {"fma.rm.f32",
       "",
       {{F(1), F(0x1p-15f), F(0x1p-15f), F(1)},
        {F(std::nextafter(1.0f, 0.0f)), F(0x1p-15f), F(-0x1p-15f), F(1)},
        {F(7), F(2), F(3), F(1)},
        {F(-1 - 0x1p-23f), F(-0x1p-60f), F(0x1p-60f), F(-1)}}},
      {"neg.f32", "", {{F(-1), F(1)}, {F(0.0f), F(-0.0f)}}},
      {"min.f32", "", {{F(-1), F(-1), F(1)}, {F(1), F(kNan), F(1)}, {F(1), F(1), F(kNan)}}},
      {"max.f32", "", {{F(1), F(-1), F(1)}, {F(1), F(kNan), F(1)}, {F(1), F(1), F(kNan)}}},
      {"sqrt.rn.f32", "", {{F(3), F(9)}, {F(0x1.6a09e6p+0f), F(2)}}},
      {"rcp.rn.f32", "", {{F(0.25f), F(4)}, {F(1.0f / 3), F(3)}}},
      {"ex2.approx.f32", "", {{F(8), F(3)}, {F(0), F(-kInfinity)}, {F(tiny), F(-149)}, {F(1), 0}}},
      {"ex2.approx.ftz.f32",
       "",
       {{F(8), F(3)}, {0, F(-149)}, {F(1), F(tiny)}, {F(0x1p-126f), F(-126)}}},
  };
}

std::vector<FormCase> MoveCases() {
  constexpr uint64_t kLong = 0x123456789abcdef0;
  return {
      {"mov.u16", "", {{0x1234, 0x1234}}},
      {"mov.u32", "", {{0x12345678, 0x12345678}}},
      {"mov.b32", "", {{0x12345678, 0x12345678}}},
      {"mov.f32", "", {{F(kNan), F(kNan)}}},
      {"mov.u64", "", {{kLong, kLong}}},
      {"mov.b64", "", {{kLong, kLong}}},
      {"cvta.to.global.u64", "", {{kLong, kLong}}},
      {"mov.b32 pack", "", {{0x56781234, 0x1234, 0x5678}, {0x00021111, 0x1111, 0x00030002}}},
      {"mov.b64 pack", "", {{kLong, 0x9abcdef0, 0x12345678}}},
      {"mov.b32 unpack", "", {{0x1234, 0x5678, 0x56781234}}},
      {"mov.b64 unpack", "", {{0x9abcdef0, 0x12345678, kLong}}},
      {"mov.pred", "", {{1, 1}, {0, 0}}},
      {"not.pred", "", {{0, 1}, {1, 0}}},
      {"and.pred", "", {{1, 1, 1}, {0, 1, 0}, {0, 0, 1}, {0, 0, 0}}},
      {"or.pred", "", {{1, 1, 1}, {1, 1, 0}, {1, 0, 1}, {0, 0, 0}}},
      {"selp.u16", "", {{3, 3, 4, 1}, {4, 3, 4, 0}}},
      {"selp.u32", "", {{3, 3, 4, 1}, {4, 3, 4, 0}}},
      {"selp.b32", "", {{3, 3, 4, 1}, {4, 3, 4, 0}}},
      {"selp.f32", "", {{F(3), F(3), F(4), 1}, {F(4), F(3), F(4), 0}}},
      {"cvt.s64.s32", "8:4", {{S(-5), S32(-5)}, {5, 5}}},
      {"cvt.s64.s32", "8:8", {{S(-5), kLong << 32 | S32(-5)}}},  // of the low half
      {"cvt.u64.u32", "8:4", {{S32(-5), S32(-5)}}},
      {"cvt.u32.u64", "4:8", {{0x9abcdef0, kLong}}},
      {"cvt.u16.u32", "4:4", {{0x5678, 0x12345678}}},
      {"cvt.rn.f32.u16", "", {{F(65535), 0xffff}, {F(1), 0x10001}}},
      {"cvt.rn.f32.u32", "", {{F(0x1p32f), kLow}, {F(7), 7}, {F(0x1p24f), (1 << 24) + 1}}},
      {"cvt.rn.f32.s64", "", {{F(-7), S(-7)}, {F(0x1p40f), (uint64_t{1} << 40) + 1}}},
      {"cvt.sat.f32.f32", "", {{0, F(-3)}, {F(1), F(3)}, {F(0.5f), F(0.5f)}, {0, F(kNan)}}},
      {"cvt.f32.f16",
       "",
       {{F(1), 0x3c00},
        {F(-2), 0xc000},
        {F(0x1p-24f), 1},
        {F(65504), 0x7bff},
        {F(kInfinity), 0x7c00},
        {F(-0.0f), 0x8000},
        {0x7fffffff, 0x7e00}}},
      // Ties go to the even one; every NaN is the same one.
      {"cvt.rn.bf16.f32",
       "",
       {{0x3f80, F(1)},
        {0x3f80, 0x3f808000},
        {0x3f82, 0x3f818000},
        {0x3f81, 0x3f808001},
        {0x7f80, F(kInfinity)},
        {0x7fff, F(kNan)},
        {0x7f80, F(std::numeric_limits<float>::max())},
        {0x8000, F(-0.0f)}}},
  };
}

std::vector<FormCase> AllCases() {
  std::vector<FormCase> all;
  for (const auto& cases : {IntegerCases(), ComparisonCases(), FloatCases(), MoveCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

// A row is a thread's: its values are 8 words of the array, the targets first.
constexpr size_t kRowWords = 8;
constexpr uint64_t kBefore = 0x1111111111111111;  // what the targets had

// Loads the operands of each thread's row, carries out the form where the guard holds, and stores
// the targets. `even_only`: the guard does not hold for odd threads.
std::string ModuleFor(const FormCase& test, bool even_only) {
  std::string shape = test.registers;
  if (shape.empty()) shape = AllForms().at(test.form).shape;
  const size_t colon = shape.find(':');
  std::string body =
      "mul.wide.u32 %rd1, %r90, 64;\nadd.s64 %rd1, %rd90, %rd1;\n"
      "and.b32 %r91, %r90, 1;\nsetp.eq.s32 %p90, %r91, 0;\n";
  if (!even_only) body += "mov.pred %p90, 1;\n";
  std::vector<std::string> operands;
  std::string store;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == colon) continue;
    const size_t word = i < colon ? i : i - 1;
    const std::string at = "[%rd1+" + std::to_string(word * 8) + "];\n";
    const std::string to = "[%rd1+" + std::to_string(word * 8) + "], ";
    const std::string number = std::to_string(10 + word);
    if (shape[i] == 'p') {
      operands.push_back("%p" + number);
      body += "ld.global.u64 %rd" + number + ", " + at;
      body += "setp.ne.s64 %p" + number + ", %rd" + number + ", 0;\n";
      store += "selp.u32 %r" + number + ", 1, 0, %p" + number + ";\n";
      store += "cvt.u64.u32 %rd" + number + ", %r" + number + ";\n";
      if (word < colon) store += "st.global.u64 " + to + "%rd" + number + ";\n";
    } else {
      const bool wide = shape[i] == '8';
      operands.push_back((wide ? "%rd" : "%r") + number);
      body += (wide ? "ld.global.u64 " : "ld.global.u32 ") + operands.back() + ", " + at;
      if (word < colon)
        store += (wide ? "st.global.u64 " : "st.global.u32 ") + to + operands.back() + ";\n";
    }
  }
  std::string name = test.form;
  std::string list;
  const bool pack = name.ends_with(" pack");
  const bool unpack = name.ends_with(" unpack");
  name = name.substr(0, name.find(' '));
  for (size_t i = 0; i < operands.size(); ++i) {
    list += i > 0 ? ", " : "";
    if ((pack && i == 1) || (unpack && i == 0)) list += "{";
    list += operands[i];
    if ((pack && i + 1 == operands.size()) || (unpack && i + 1 == colon)) list += "}";
  }
  return ModuleOf(body + "@%p90 " + name + " " + list + ";\n" + store);
}

// What a thread's targets must have.
uint64_t Expected(char shape, uint64_t value, bool carried_out) {
  if (carried_out) return shape == '4' ? (kBefore & ~kLow) | (value & kLow) : value;
  return shape == 'p' ? 1 : kBefore;
}

TEST(PtxForms, AreWhatTheIsaSays) {
  for (const FormCase& test : AllCases()) {
    std::string shape = test.registers;
    if (shape.empty()) shape = AllForms().at(test.form).shape;
    const size_t targets = shape.find(':');
    for (const bool even_only : {false, true}) {
      std::vector<uint64_t> rows(32 * kRowWords, kBefore);
      for (size_t thread = 0; thread < 32; ++thread) {
        const std::vector<uint64_t>& row = test.rows[thread / 2 % test.rows.size()];
        ASSERT_EQ(row.size() + 1, shape.size()) << test.form;
        for (size_t i = targets; i < row.size(); ++i) rows[thread * kRowWords + i] = row[i];
      }
      Arrays arrays(std::vector<std::vector<uint64_t>>{rows});
      ASSERT_EQ(arrays.Defects(ModuleFor(test, even_only)), "") << test.form;
      for (size_t thread = 0; thread < 32; ++thread) {
        const std::vector<uint64_t>& row = test.rows[thread / 2 % test.rows.size()];
        for (size_t i = 0; i < targets; ++i) {
          EXPECT_EQ(arrays[0][thread * kRowWords + i],
                    Expected(shape[i], row[i], !even_only || thread % 2 == 0))
              << test.form << ", row " << thread / 2 % test.rows.size() << ", thread " << thread
              << (even_only ? ", odd threads left out" : "");
        }
      }
    }
  }
}

// Loads, stores and what lanes do together are tested elsewhere (memory_test.cpp, warp_test.cpp).
TEST(PtxForms, EachHasATest) {
  std::set<std::string> tested;
  for (const FormCase& test : AllCases()) tested.insert(test.form);
  for (const auto& [name, form] : AllForms()) {
    if (form.space != Space::kNone || form.flow != Flow::kNext || name == "membar.sys") continue;
    EXPECT_EQ(tested.count(name), 1u) << name;
  }
}

TEST(PtxForms, DivisionByZeroIsADefect) {
  for (const char* form : {"div.s32", "rem.u32"}) {
    Arrays arrays(std::vector<std::vector<uint64_t>>{{0}});
    const std::string defect =
        arrays.Defects(ModuleOf("mov.u32 %r2, 0;\n" + std::string(form) + " %r1, %r90, %r2;\n"));
    EXPECT_NE(defect.find("division by zero"), std::string::npos) << defect;
  }
}

}  // namespace
}  // namespace moesaic::ptx
