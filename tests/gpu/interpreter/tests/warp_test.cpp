// What lanes do together: branches, exchanges, barriers, matrix products, races.
#include <bit>

#include "tests/gpu/interpreter/small_floats.h"
#include "tests/gpu/interpreter/tests/ptx_harness.h"

namespace moesaic::ptx {
namespace {

std::vector<std::vector<uint64_t>> Zeros(size_t words) { return {std::vector<uint64_t>(words)}; }

// The address of the thread's word of array 0 in %rd1.
const std::string kOwnWord = "mul.wide.u32 %rd1, %r90, 8;\nadd.s64 %rd1, %rd90, %rd1;\n";

TEST(PtxWarp, SpecialRegisters) {
  Arrays arrays(Zeros(2 * 2 * 64));
  arrays.Run(ModuleOf("mov.u32 %r1, %ntid.x;\nmov.u32 %r2, %ctaid.y;\nmov.u32 %r3, %nctaid.x;\n"
                      "mov.u32 %r4, %ctaid.x;\nmov.u32 %r5, %tid.y;\nmov.u32 %r6, %laneid;\n"
                      // block (x, y), thread (x, y) -> word
                      "mad.lo.s32 %r7, %r2, %r3, %r4;\nmad.lo.s32 %r7, %r7, 2, %r5;\n"
                      "mad.lo.s32 %r7, %r7, %r1, %r90;\n"
                      "mul.wide.u32 %rd1, %r7, 8;\nadd.s64 %rd1, %rd90, %rd1;\n"
                      "st.global.u32 [%rd1], %r7;\nst.global.u32 [%rd1+4], %r6;"),
             {20, 2}, {3, 2});
  // 3 x 2 blocks of 20 x 2 threads; the rest is untouched.
  for (size_t i = 0; i < 240; ++i) {
    EXPECT_EQ(arrays[0][i] & 0xffffffff, i);
    EXPECT_EQ(arrays[0][i] >> 32, i % 40 % 32);
  }
  EXPECT_EQ(arrays[0][241], 0u);
}

TEST(PtxWarp, LanesPartAndMeetAgain) {
  Arrays arrays(Zeros(64));
  // A loop of as many rounds as the thread's number has, by odd threads only; then all shuffle.
  const std::string module =
      ModuleOf(kOwnWord +
               "mov.u32 %r1, 0;\nmov.u32 %r2, 0;\nand.b32 %r3, %r90, 1;\nsetp.eq.s32 %p1, %r3, 0;\n"
               "@%p1 bra $even;\n"
               "$loop:\nadd.s32 %r1, %r1, 1;\nsetp.lt.s32 %p2, %r1, %r90;\n@%p2 bra $loop;\n"
               "bra.uni $all;\n$even:\nmov.u32 %r1, 100;\n$all:\n"
               "shfl.sync.bfly.b32 %r4|%p3, %r1, 1, 31, -1;\nst.global.u32 [%rd1], %r4;");
  arrays.Run(module, {64});
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(arrays[0][i], i % 2 == 0 ? i + 1 : 100) << i;
}

TEST(PtxWarp, SomeLanesEnd) {
  Arrays arrays(Zeros(32));
  arrays.Run(
      ModuleOf(kOwnWord + "setp.lt.u32 %p1, %r90, 5;\n@%p1 ret;\n@!%p1 st.global.u32 [%rd1], 7;"));
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(arrays[0][i], i < 5 ? 0u : 7u);
}

// PTX ISA, shfl.sync: the segment of a lane and the last lane that counts.
TEST(PtxWarp, ShufflesStayInTheirSegment) {
  struct Case {
    uint32_t mask, control;
  };
  for (const Case& test : {Case{16, 31}, Case{1, 31}, Case{5, 0x1c1f}, Case{8, 7}, Case{31, 31}}) {
    Arrays arrays(Zeros(32));
    arrays.Run(ModuleOf(kOwnWord + "shfl.sync.bfly.b32 %r1|%p1, %r90, " +
                        std::to_string(test.mask) + ", " + std::to_string(test.control) +
                        ", -1;\nselp.u32 %r2, 1, 0, %p1;\nst.global.u32 [%rd1], %r1;\n"
                        "st.global.u32 [%rd1+4], %r2;"));
    const uint32_t segment = test.control >> 8;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t last = (lane & segment) | (test.control & 31 & ~segment);
      const bool valid = (lane ^ test.mask) <= last;
      EXPECT_EQ(arrays[0][lane], uint64_t{valid} << 32 | (valid ? lane ^ test.mask : lane));
    }
  }
}

TEST(PtxWarp, AShuffleNeedsAllLanes) {
  Arrays arrays(Zeros(32));
  const std::string shuffle = "shfl.sync.bfly.b32 %r1|%p1, %r90, 1, 31, -1;\n";
  const auto defect = [&](const std::string& body, Dim threads = {32}) {
    return arrays.Defects(ModuleOf(body), threads);
  };
  EXPECT_EQ(defect(shuffle), "");
  // Their neighbours have ended, or were never there.
  EXPECT_NE(defect("setp.lt.u32 %p1, %r90, 1;\n@%p1 ret;\n" + shuffle).find("has ended"),
            std::string::npos);
  EXPECT_NE(defect(shuffle, {17}).find("has ended"), std::string::npos);
  // Others are at another one, or wait for the block.
  const std::string part = "setp.lt.u32 %p1, %r90, 7;\n@%p1 bra $other;\n";
  EXPECT_NE(defect(part + shuffle + "ret;\n$other:\n" + shuffle).find("thread 7 waits at PTX line"),
            std::string::npos);
  EXPECT_NE(defect(part + shuffle + "ret;\n$other:\nbar.sync 0;").find("wait for the block"),
            std::string::npos);
  EXPECT_NE(defect("shfl.sync.bfly.b32 %r1|%p1, %r90, 1, 31, 255;").find("has not all lanes"),
            std::string::npos);
}

TEST(PtxWarp, BarriersOfTheBlockAreTheSameForAll) {
  Arrays arrays(Zeros(32));
  const auto defect = [&](const std::string& body) {
    return arrays.Defects(ModuleOf("setp.lt.u32 %p1, %r90, 40;\n" + body), {64});
  };
  EXPECT_EQ(defect("@%p1 bra $end;\n$end:\nbar.sync 0;"), "");
  EXPECT_EQ(defect("@%p1 ret;\nbar.sync 0;"), "");  // who has ended is not waited for
  EXPECT_NE(defect("@%p1 bra $end;\nbar.sync 0;\nret;\n$end:\nbar.sync 0;")
                .find("a barrier of the block, but thread"),
            std::string::npos);
}

TEST(PtxWarp, AMatrixProduct) {
  // Array 0: 10 registers of each lane, array 1: the 4 of the result.
  std::vector<uint64_t> in(32 * 5);
  auto* const registers = reinterpret_cast<uint32_t*>(in.data());
  float a[16][16];
  float b[16][8];
  float c[16][8];
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) a[i][j] = static_cast<float>((i * 7 + j * 3) % 11 - 5);
    for (int j = 0; j < 8; ++j) b[i][j] = static_cast<float>((i * 5 + j) % 13 - 6);
    for (int j = 0; j < 8; ++j) c[i][j] = static_cast<float>(i * 8 + j);
  }
  const auto both = [](float low, float high) {
    return static_cast<uint32_t>(FloatToBfloat16(low)) |
           static_cast<uint32_t>(FloatToBfloat16(high)) << 16;
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane >> 2;  // the ISA's names: groupID and threadID_in_group
    const int t = lane % 4;
    uint32_t* const r = registers + lane * 10;
    // row = groupID for a0, a1, a4, a5, else groupID + 8; col = 2t + (i & 1), + 8 for i >= 4
    r[0] = both(a[g][2 * t], a[g][2 * t + 1]);
    r[1] = both(a[g + 8][2 * t], a[g + 8][2 * t + 1]);
    r[2] = both(a[g][2 * t + 8], a[g][2 * t + 9]);
    r[3] = both(a[g + 8][2 * t + 8], a[g + 8][2 * t + 9]);
    r[4] = both(b[2 * t][g], b[2 * t + 1][g]);
    r[5] = both(b[2 * t + 8][g], b[2 * t + 9][g]);
    r[6] = std::bit_cast<uint32_t>(c[g][2 * t]);
    r[7] = std::bit_cast<uint32_t>(c[g][2 * t + 1]);
    r[8] = std::bit_cast<uint32_t>(c[g + 8][2 * t]);
    r[9] = std::bit_cast<uint32_t>(c[g + 8][2 * t + 1]);
  }
  std::string body =
      "mul.wide.u32 %rd1, %r90, 40;\nadd.s64 %rd1, %rd90, %rd1;\n"
      "mul.wide.u32 %rd2, %r90, 16;\nadd.s64 %rd2, %rd91, %rd2;\n";
  for (int i = 0; i < 10; ++i) {
    body += "ld.global.u32 %r" + std::to_string(i) + ", [%rd1+" + std::to_string(4 * i) + "];\n";
  }
  const std::string product =
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r20, %r21, %r22, %r23}, "
      "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9};\n";
  body += product + "st.global.v4.u32 [%rd2], {%r20, %r21, %r22, %r23};";
  Arrays arrays({in, std::vector<uint64_t>(32 * 2)});
  arrays.Run(ModuleOf(body, 2));
  const auto* const out = reinterpret_cast<const float*>(arrays[1].data());
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = (lane >> 2) + (i < 2 ? 0 : 8);
      const int column = lane % 4 * 2 + (i & 1);
      float sum = c[row][column];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      EXPECT_EQ(out[lane * 4 + i], sum) << lane << " " << i;
    }
  }
  EXPECT_NE(arrays.Defects(ModuleOf("setp.lt.u32 %p1, %r90, 1;\n@%p1 ret;\n" + product, 2))
                .find("of which lanes have ended"),
            std::string::npos);
}

// ---- Races.

const std::string kShared = ".shared .align 8 .b8 s[512];\n";
// The address of the thread's four bytes of shared memory in %r1, of the next thread's in %r2.
const std::string kOwnShared =
    kShared + "shl.b32 %r1, %r90, 2;\nadd.s32 %r2, %r1, 4;\nand.b32 %r2, %r2, 127;\n";

std::string Races(const std::string& body, Dim threads = {32}, Dim grid = {}) {
  Arrays arrays(Zeros(256));
  return arrays.Defects(ModuleOf(body), threads, grid);
}

TEST(PtxRaces, InSharedMemory) {
  const std::string own = kOwnShared + "st.shared.u32 [%r1], %r90;\n";
  const std::string next = "ld.shared.u32 %r3, [%r2];\n";
  EXPECT_EQ(Races(own + "bar.sync 0;\n" + next), "");
  EXPECT_EQ(Races(own + "bar.warp.sync -1;\n" + next), "");
  EXPECT_NE(Races(own + next).find("race: thread"), std::string::npos);
  EXPECT_NE(Races(own + "membar.sys;\n" + next).find("race: thread"), std::string::npos);
  // Written after it was read by others.
  EXPECT_NE(Races(own + "bar.sync 0;\n" + next + "st.shared.u32 [%r1], %r3;").find("read this"),
            std::string::npos);
  EXPECT_EQ(Races(own + "bar.sync 0;\n" + next + "bar.sync 0;\nst.shared.u32 [%r1], %r3;"), "");
  // All write one place.
  EXPECT_NE(Races(kShared + "st.shared.u32 [s], %r90;").find("wrote this"), std::string::npos);
}

TEST(PtxRaces, ABarrierOfTheWarpOrdersNoOtherWarp) {
  const auto exchange = [](const std::string& barrier) {
    return kShared + "shl.b32 %r1, %r90, 2;\nst.shared.u32 [%r1], %r90;\nbar.sync 0;\n" +
           "st.shared.u32 [%r1], %r90;\n" + barrier + ";\n" +
           // that of the other warp
           "sub.s32 %r2, 252, %r1;\nld.shared.u32 %r3, [%r2];";
  };
  EXPECT_NE(Races(exchange("bar.warp.sync -1"), {64}).find("race: thread"), std::string::npos);
  EXPECT_EQ(Races(exchange("bar.sync 0"), {64}), "");
}

TEST(PtxRaces, ManyReadersAndOneWriter) {
  // Everybody, the writer too, has read it: whoever was last.
  const std::string all = kShared +
                          "setp.eq.s32 %p1, %r90, 0;\n@%p1 st.shared.u32 [s], %r90;\nbar.sync 0;\n"
                          "ld.shared.u32 %r3, [s];\n";
  for (const char* writer : {"0", "31", "63"}) {
    const std::string write =
        "setp.eq.s32 %p2, %r90, " + std::string(writer) + ";\n@%p2 st.shared.u32 [s], %r90;";
    EXPECT_NE(Races(all + write, {64}), "") << writer;
    EXPECT_NE(Races(all + write, {32 + (writer[0] == '6' ? 32u : 0u)}), "") << writer;
    EXPECT_EQ(Races(all + "bar.sync 0;\n" + write, {64}), "") << writer;
  }
}

TEST(PtxRaces, InGlobalMemory) {
  const std::string store_own = kOwnWord + "st.global.u32 [%rd1], %r90;\n";
  EXPECT_EQ(Races(store_own), "");
  EXPECT_NE(Races("st.global.u32 [%rd90], %r90;"), "");
  EXPECT_EQ(Races("st.volatile.global.u32 [%rd90], %r90;"), "");
  // Another block's: no barrier helps.
  EXPECT_NE(Races(store_own + "bar.sync 0;", {32}, {2}).find("another block"), std::string::npos);
  const std::string next = "ld.global.u32 %r1, [%rd90];\n";
  EXPECT_NE(Races(store_own + next), "");
  EXPECT_EQ(Races(store_own + "bar.sync 0;\n" + next), "");
  // Blocks that read what a later one writes.
  const std::string last =
      "mov.u32 %r2, %ctaid.x;\nsetp.eq.s32 %p1, %r2, 2;\nsetp.eq.s32 %p2, %r90, 0;\n"
      "and.pred %p1, %p1, %p2;\n" +
      next + "bar.sync 0;\n@%p1 st.global.u32 [%rd90], %r2;";
  EXPECT_NE(Races(last, {32}, {3}).find("read this"), std::string::npos);
}

// Neighbours write halves of a word; an earlier launch does not count.
TEST(PtxRaces, NeighboursAndLaunches) {
  Arrays arrays(Zeros(64));
  const std::string halves = ModuleOf(
      "mul.wide.u32 %rd1, %r90, 2;\nadd.s64 %rd1, %rd90, %rd1;\nst.global.u16 [%rd1], %r90;");
  EXPECT_EQ(arrays.Defects(halves), "");
  EXPECT_EQ(arrays.Defects(halves, {64}), "");
  EXPECT_EQ(arrays.Defects(ModuleOf("ld.global.u32 %r1, [%rd90];")), "");
}

}  // namespace
}  // namespace moesaic::ptx
