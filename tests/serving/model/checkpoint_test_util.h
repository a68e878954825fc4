// What tests of stored weights do with a checkpoint: break its files, and pack an expert of what is
// read of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/io/checkpoint.h"
#include "core/io/expert_source.h"

namespace moesaic {

// Every `from` in a file becomes `to`, which is as long.
inline void ReplaceIn(const std::filesystem::path& file, const std::string& from,
                      const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string text = ReadTextFile(file, 1 << 20);
  size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  for (; at != std::string::npos; at = text.find(from, at)) text.replace(at, to.size(), to);
  std::ofstream(file, std::ios::binary) << text;
}

// The expert's blob, made of its extents as a loader does; `slot` is zeroed first.
inline void ReadAndPack(const ExpertSource& source, const Checkpoint& checkpoint, ExpertId id,
                        std::span<std::byte> slot) {
  std::fill(slot.begin(), slot.end(), std::byte{0});
  std::vector<std::vector<std::byte>> bytes;
  for (const Extent& extent : source.Extents(id)) {
    TensorInfo raw;
    raw.extent = extent;
    checkpoint.Read(raw, bytes.emplace_back(extent.bytes));
  }
  const std::vector<std::span<const std::byte>> pieces(bytes.begin(), bytes.end());
  source.Pack(id, pieces, slot);
}

}  // namespace moesaic
