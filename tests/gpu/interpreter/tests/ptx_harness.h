// Runs small pieces of PTX on arrays, for the tests of the interpreter.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/interpreter/block.h"
#include "tests/gpu/interpreter/defect.h"
#include "tests/gpu/interpreter/memory_map.h"
#include "tests/gpu/interpreter/parser.h"

namespace moesaic::ptx {

// A module with one kernel, whose parameters are the addresses of arrays p0, p1 and so on. The body
// finds these addresses in %rd90, %rd91, ... and the number of its thread in %r90.
inline std::string ModuleOf(const std::string& body, int arrays = 1,
                            const std::string& attributes = ".maxntid 1024, 1, 1") {
  std::string text = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry kernel(";
  for (int i = 0; i < arrays; ++i) {
    text += (i > 0 ? ", .param .u64 p" : ".param .u64 p") + std::to_string(i);
  }
  text +=
      ")\n" + attributes + "\n{\n.reg .pred %p<100>;\n.reg .b16 %rs<100>;\n.reg .f32 %f<100>;\n";
  text += ".reg .b32 %r<100>;\n.reg .b64 %rd<100>;\n";
  for (int i = 0; i < arrays; ++i) {
    const std::string n = std::to_string(i);
    text += "ld.param.u64 %rd9" + n + ", [p" + n + "];\n";
  }
  return text + "mov.u32 %r90, %tid.x;\n" + body + "\nret;\n}\n";
}

// Memory of GPU 0.
class Arrays {
 public:
  explicit Arrays(std::vector<std::vector<uint64_t>> values) : values_(std::move(values)) {
    for (const std::vector<uint64_t>& array : values_) {
      EXPECT_TRUE(map_.Add(reinterpret_cast<uint64_t>(array.data()), array.size() * 8,
                           MemoryKind::kDevice, 0));
    }
  }
  std::vector<uint64_t>& operator[](size_t index) { return values_[index]; }
  const MemoryMap& map() const { return map_; }
  MemoryMap& map() { return map_; }

  void Run(const std::string& module, Dim threads = {32}, Dim grid = {}) {
    const std::vector<Kernel> kernels = ParseModule(module);
    ASSERT_EQ(kernels.size(), 1u);
    std::vector<std::byte> parameters(kernels[0].parameter_bytes);
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto address = reinterpret_cast<uint64_t>(values_[i].data());
      std::memcpy(parameters.data() + 8 * i, &address, 8);
    }
    RunKernel(kernels[0], grid, threads, parameters, {map_, 0, 0});
  }
  // What the interpreter says against it; empty: nothing.
  std::string Defects(const std::string& module, Dim threads = {32}, Dim grid = {}) {
    try {
      Run(module, threads, grid);
    } catch (const Defect& defect) {
      return defect.what();
    }
    return "";
  }

 private:
  std::vector<std::vector<uint64_t>> values_;
  MemoryMap map_;
};

}  // namespace moesaic::ptx
