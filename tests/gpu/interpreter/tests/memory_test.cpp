// Loads and stores: what they move, and what the interpreter finds wrong with them.
#include <set>

#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/tests/ptx_harness.h"

namespace moesaic::ptx {
namespace {

constexpr uint64_t kBytes = 0xf8f7f6f5f4f3f2f1;  // each byte another one, all negative

struct Access {
  std::string name;
  std::string type;
  int vector = 1;
  bool load = false;
  Space space = Space::kNone;
};

std::vector<Access> AllAccesses() {
  std::vector<Access> all;
  for (const auto& [name, form] : AllForms()) {
    if (form.space == Space::kNone) continue;
    Access access;
    access.name = name;
    access.load = name.starts_with("ld");
    access.type = name.substr(name.find_last_of('.') + 1);
    access.vector = name.find(".v2.") != std::string::npos   ? 2
                    : name.find(".v4.") != std::string::npos ? 4
                                                             : 1;
    access.space = form.space;
    all.push_back(access);
  }
  return all;
}

int BytesOf(const std::string& type) { return std::stoi(type.substr(1)) / 8; }

// What a load of element `i` of kBytes, repeated, gives in a register of 64 bits.
uint64_t Loaded(const std::string& type, int i) {
  const int bytes = BytesOf(type);
  const int first = i * bytes % 8;
  uint64_t value = bytes == 8 ? kBytes : kBytes >> (8 * first) & ((uint64_t{1} << 8 * bytes) - 1);
  if (type == "s32") value |= 0xffffffff00000000;
  return value;
}

std::string VectorOf(int elements) {
  std::string text = "%rd50";
  for (int i = 1; i < elements; ++i) text += ", %rd5" + std::to_string(i);
  return elements > 1 ? "{" + text + "}" : text;
}

// Array 0 has the memory that is accessed, array 1 gets what was loaded. Thread 0 alone runs.
std::string ModuleFor(const Access& access) {
  std::string body = ".shared .align 16 .b8 shared[32];\n.local .align 16 .b8 local[32];\n";
  std::string address = "[%rd90+16]";
  if (access.space == Space::kShared || access.space == Space::kLocal) {
    const std::string space = access.space == Space::kShared ? "shared" : "local";
    address = "[" + space + "+16]";
    for (const char* at : {"+16", "+24"}) {
      body += "ld.global.u64 %rd1, [%rd90" + std::string(at) + "];\n";
      body += "st." + space + ".u64 [" + space + at + "], %rd1;\n";
    }
  } else if (access.space == Space::kParameter) {
    address = "[p2]";
  }
  if (access.load) {
    body += access.name + " " + VectorOf(access.vector) + ", " + address + ";\n";
    for (int i = 0; i < access.vector; ++i) {
      const std::string n = std::to_string(i);
      body += "st.global.u64 [%rd91+" + std::to_string(8 * i) + "], %rd5" + n + ";\n";
    }
  } else {
    for (int i = 0; i < access.vector; ++i) {
      body += "mov.u64 %rd5" + std::to_string(i) + ", " + std::to_string(0x0102030405060708 + i) +
              ";\n";
    }
    body += access.name + " " + address + ", " + VectorOf(access.vector) + ";\n";
    if (access.space == Space::kShared || access.space == Space::kLocal) {
      const std::string space = access.space == Space::kShared ? "shared" : "local";
      for (const char* at : {"+16", "+24"}) {
        body += "ld." + space + ".u64 %rd1, [" + space + at + "];\n";
        body += "st.global.u64 [%rd90" + std::string(at) + "], %rd1;\n";
      }
    }
  }
  std::string module = ModuleOf(body, 2);
  // A parameter that holds what is loaded from parameters.
  const std::string last = ".param .u64 p1)";
  module.replace(module.find(last), last.size(), ".param .u64 p1, .param .align 16 .b8 p2[16])");
  return module;
}

TEST(PtxMemory, LoadsAndStoresOfEveryForm) {
  for (const Access& access : AllAccesses()) {
    Arrays arrays({std::vector<uint64_t>(8, kBytes), std::vector<uint64_t>(4)});
    const std::vector<Kernel> kernels = ParseModule(ModuleFor(access));
    std::vector<std::byte> parameters(kernels[0].parameter_bytes);
    for (size_t i = 0; i < 2; ++i) {
      const auto address = reinterpret_cast<uint64_t>(arrays[i].data());
      std::memcpy(parameters.data() + 8 * i, &address, 8);
    }
    for (size_t at = 16; at < 32; at += 8) std::memcpy(parameters.data() + at, &kBytes, 8);
    RunKernel(kernels[0], {}, {1}, parameters, {arrays.map(), 0, 0});
    const int bytes = BytesOf(access.type);
    for (int i = 0; i < access.vector; ++i) {
      if (access.load) {
        EXPECT_EQ(arrays[1][static_cast<size_t>(i)], Loaded(access.type, i)) << access.name;
        continue;
      }
      const uint64_t stored = 0x0102030405060708 + static_cast<uint64_t>(i);
      EXPECT_EQ(std::memcmp(reinterpret_cast<std::byte*>(arrays[0].data()) + 16 + i * bytes,
                            &stored, static_cast<size_t>(bytes)),
                0)
          << access.name;
    }
    if (access.load) continue;
    // Nothing beside it.
    for (int at = 16 + access.vector * bytes; at < 64; ++at) {
      EXPECT_EQ(reinterpret_cast<uint8_t*>(arrays[0].data())[at], 0xf1 + at % 8)
          << access.name << ", byte " << at;
    }
  }
}

std::string Word(const std::string& body, std::vector<uint64_t> array = std::vector<uint64_t>(4)) {
  Arrays arrays(std::vector<std::vector<uint64_t>>{std::move(array)});
  return arrays.Defects(ModuleOf(body), {1});
}

TEST(PtxMemory, AnAccessLiesInOneAllocation) {
  EXPECT_EQ(Word("ld.global.u64 %rd1, [%rd90+24];"), "");
  const std::string behind = Word("ld.global.u32 %r1, [%rd90+32];");
  EXPECT_NE(behind.find("nobody took or registered"), std::string::npos) << behind;
  EXPECT_NE(behind.find("kernel, block (0, 0, 0), thread 0, PTX line 14 'ld.global.u32 %r1, "
                        "[%rd90+32]'"),
            std::string::npos)
      << behind;
  EXPECT_NE(Word("st.global.u64 [%rd90+-8], %rd90;"), "");
  EXPECT_NE(Word("mov.u64 %rd1, 0;\nld.global.u64 %rd1, [%rd1];"), "");
}

TEST(PtxMemory, AnAccessLiesInOneBlockOfAnArena) {
  Arrays arrays(std::vector<std::vector<uint64_t>>{std::vector<uint64_t>(64)});
  const auto base = reinterpret_cast<uint64_t>(arrays[0].data());
  arrays.map().AddBlock(base, 20);
  arrays.map().AddBlock(base + 256, 64);
  EXPECT_EQ(arrays.Defects(ModuleOf("ld.global.u32 %r1, [%rd90+16];"), {1}), "");
  EXPECT_EQ(arrays.Defects(ModuleOf("ld.global.u32 %r1, [%rd90+256];"), {1}), "");
  const std::string rest = arrays.Defects(ModuleOf("ld.global.u32 %r1, [%rd90+20];"), {1});
  EXPECT_NE(rest.find("20 bytes after the beginning of a buffer of 20"), std::string::npos) << rest;
  EXPECT_NE(arrays.Defects(ModuleOf("ld.global.u64 %rd1, [%rd90+16];"), {1}), "");
  arrays.map().RemoveBlock(base + 256);
  EXPECT_NE(arrays.Defects(ModuleOf("ld.global.u32 %r1, [%rd90+256];"), {1}), "");
}

TEST(PtxMemory, WhatIsFreedMeanwhileIsNotReached) {
  Arrays arrays(std::vector<std::vector<uint64_t>>{std::vector<uint64_t>(4)});
  const std::string module = ModuleOf("ld.global.u32 %r1, [%rd90];");
  EXPECT_EQ(arrays.Defects(module, {1}), "");
  EXPECT_TRUE(arrays.map().Remove(reinterpret_cast<uint64_t>(arrays[0].data())));
  EXPECT_NE(arrays.Defects(module, {1}), "");
}

TEST(PtxMemory, WhoseMemoryItIs) {
  std::vector<uint64_t> memory(4);
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const std::vector<Kernel> kernels = ParseModule(ModuleOf("ld.global.u64 %rd1, [%rd90];"));
  std::vector<std::byte> parameters(8);
  std::memcpy(parameters.data(), &address, 8);
  const auto defect = [&](MemoryKind kind, int device, uint32_t peers) -> std::string {
    MemoryMap map;
    map.Add(address, 32, kind, device);
    try {
      RunKernel(kernels[0], {}, {1}, parameters, {map, 0, peers});
    } catch (const Defect& found) {
      return found.what();
    }
    return "";
  };
  EXPECT_EQ(defect(MemoryKind::kDevice, 0, 0), "");
  EXPECT_NE(defect(MemoryKind::kDevice, 1, 0).find("no peer"), std::string::npos);
  EXPECT_EQ(defect(MemoryKind::kDevice, 1, 2), "");
  EXPECT_EQ(defect(MemoryKind::kMapped, 1, 0), "");
  EXPECT_NE(defect(MemoryKind::kPinned, 0, 0).find("cudaHostRegisterMapped"), std::string::npos);
}

TEST(PtxMemory, AlignedToItsSize) {
  EXPECT_NE(Word("ld.global.u32 %r1, [%rd90+2];").find("not aligned to 4"), std::string::npos);
  EXPECT_NE(Word("ld.global.v2.u32 {%r1, %r2}, [%rd90+4];").find("not aligned to 8"),
            std::string::npos);
}

TEST(PtxMemory, SharedAndLocalMemoryHaveBounds) {
  const std::string declared = ".shared .align 4 .b8 s[8];\n.local .align 4 .b8 l[8];\n";
  EXPECT_EQ(Word(declared + "st.shared.u32 [s+4], %r90;"), "");
  EXPECT_NE(Word(declared + "st.shared.u32 [s+8], %r90;").find("shared memory, which has 8"),
            std::string::npos);
  EXPECT_EQ(Word(declared + "st.local.u32 [l+4], %r90;"), "");
  EXPECT_NE(Word(declared + "st.local.u32 [l+8], %r90;").find("local memory, which has 8"),
            std::string::npos);
  EXPECT_NE(Word("ld.param.u32 %r1, [p0+8];").find("parameter memory"), std::string::npos);
  EXPECT_NE(Word(declared + "ld.shared.u32 %r1, [s];").find("nobody has written"),
            std::string::npos);
}

}  // namespace
}  // namespace moesaic::ptx
