// FlatSource: experts of one size, one behind the other in one file, whose bytes are blobs.
// Immutable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/check.h"
#include "core/io/expert_source.h"

namespace moesaic {

class FlatSource final : public ExpertSource {
 public:
  FlatSource(const ExpertGrid& grid, uint64_t expert_bytes) : grid_(grid) {
    layout_.blob_bytes = layout_.slot_bytes = expert_bytes;
    for (ExpertIndex expert = 0; expert < grid.total(); ++expert) {
      extents_.push_back({0, static_cast<uint64_t>(expert) * expert_bytes, expert_bytes});
    }
  }
  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t) const override { return true; }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {&extents_[static_cast<size_t>(grid_.Index(id))], 1};
  }
  bool direct() const override { return true; }
  void Pack(ExpertId, std::span<const std::span<const std::byte>>,
            std::span<std::byte>) const override {
    CHECK(false);
  }

 private:
  const ExpertGrid grid_;
  std::vector<std::filesystem::path> files_ = {"experts"};
  ExpertLayout layout_;
  std::vector<Extent> extents_;
};

}  // namespace moesaic
