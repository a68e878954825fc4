// What the parser makes of PTX, and what it says of text that is none.
#include "core/base/error.h"
#include "tests/gpu/interpreter/tests/ptx_harness.h"

namespace moesaic::ptx {
namespace {

std::string ErrorOf(const std::string& text) {
  try {
    ParseModule(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
std::string ErrorOfBody(const std::string& body) { return ErrorOf(ModuleOf(body)); }

TEST(PtxParser, WhatAKernelDeclares) {
  const std::vector<Kernel> kernels = ParseModule(
      "// a comment\n.version 9.0\n.target sm_90\n.address_size 64\n"
      ".entry first(\n  .param .u32 a,\n  .param .align 8 .b8 b[20]  /* { */\n)\n"
      ".maxntid 32, 4, 1\n.minnctapersm 2\n{\n.reg .b32 %r<3>;\n.shared .align 16 .b8 s[24];\n"
      ".shared .f32 t;\n.local .align 8 .b8 l[9];\n.pragma \"nounroll\";\nret;\n}\n"
      ".visible .entry second()\n{\nret;\n}\n.weak .entry third\n{\n{ ret; }\n}\n");
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0].name, "first");
  ASSERT_EQ(kernels[0].parameters.size(), 2u);
  EXPECT_EQ(kernels[0].parameters[1].offset, 8u);
  EXPECT_EQ(kernels[0].parameters[1].bytes, 20u);
  EXPECT_EQ(kernels[0].parameter_bytes, 28u);
  EXPECT_EQ(kernels[0].most_threads, 128u);
  EXPECT_EQ(kernels[0].shared_bytes, 28u);
  EXPECT_EQ(kernels[0].local_bytes, 9u);
  EXPECT_EQ(kernels[1].name, "second");
  EXPECT_EQ(kernels[1].most_threads, 0u);
  EXPECT_EQ(kernels[2].code.size(), 2u);
  EXPECT_EQ(kernels[2].source[0].line, 25);
}

// Each with its line and its name.
TEST(PtxParser, WhatItDoesNotKnow) {
  EXPECT_EQ(ErrorOfBody(""), "");
  const std::string atomic = ErrorOfBody("atom.global.add.u32 %r1, [%rd90], 1;");
  EXPECT_NE(atomic.find("line 14"), std::string::npos) << atomic;
  EXPECT_NE(atomic.find("'atom.global.add.u32'"), std::string::npos) << atomic;
  // Another program may fuse it with a product.
  EXPECT_NE(ErrorOfBody("add.f32 %f1, %f2, %f3;").find("'add.f32'"), std::string::npos);
  EXPECT_NE(ErrorOfBody("mov.u32 %r1, %clock.x;").find("%clock"), std::string::npos);
  EXPECT_NE(ErrorOfBody(".const .b8 x[4];").find(".const"), std::string::npos);
  EXPECT_NE(ErrorOf(".version 9.0\n.func f() { ret; }").find(".func"), std::string::npos);
  EXPECT_NE(ErrorOf(ModuleOf("", 1, ".reqntid 3")).find(".reqntid"), std::string::npos);
}

TEST(PtxParser, TextThatIsNoPtx) {
  const char* const bodies[] = {
      "add.s32 %r1, %r2;",            // too few operands
      "add.s32 %r1, %r2, %r3, %r4;",  // too many
      "add.s32 %r1, %r2, %rd3;",      // a register of another size
      "add.s32 %r1, %r2, %r100;",     // not declared
      "add.s32 %r1, %r2, %x3;",       // not declared
      "add.s32 3, %r2, %r1;",         // no register
      "add.s32 %r1, %r2, 0x;",        // no number
      "add.s32 %r1, %r2, 12x;",       // no number
      "add.s32 %r1, %r2, 99999999999999999999;",
      "mov.f32 %f1, 0f3F8000;x",            // does not end
      "ld.global.u32 %r1, %rd90;",          // no address
      "ld.global.u32 %r1, [];",             // no address
      "ld.global.u32 %r1, [%rd90+x];",      // no number
      "ld.shared.u32 %r1, [nobody];",       // not declared
      "bra $nowhere;",                      // no such label
      "bra;",                               // no label
      "$a:\n$a:",                           // twice
      ".reg .b32 %r<4>;",                   // twice
      ".shared .align 3 .b8 s[4];",         // no power of two
      ".shared .align 4 .b8 s[99999999];",  // too large
      ".shared .align 4 .b7 s[4];",         // no type
      "{ mov.u32 %r1, 1;",                  // does not end
      "@%r1 bra $x;\n$x:",                  // no predicate
  };
  for (const char* body : bodies) EXPECT_NE(ErrorOfBody(body), "") << body;
  for (const char* text : {".entry", ".entry k", ".entry k(", ".entry k(.param .u64 a)", "garbage",
                           ".entry k(.param .u64 a, .param .u64 a) { ret; }", ".entry k { /*"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
}

}  // namespace
}  // namespace moesaic::ptx
