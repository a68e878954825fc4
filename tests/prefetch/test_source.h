// TestSource: synthetic experts whose every byte tells where it belongs, in files laid out as a
// checkpoint (three unaligned extents per expert, packed) or as a store (one aligned extent).
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/expert_source.h"

namespace moesaic {

struct TestSourceShape {
  int num_layers = 4;
  int num_experts = 8;
  std::vector<uint64_t> piece_bytes = {1000, 5000, 300};  // per extent
  bool direct = false;       // one aligned extent; piece_bytes holds its one length
  uint64_t gap_bytes = 0;    // between the pieces of an expert
  uint64_t head_bytes = 77;  // before the first expert (a safetensors header)
  int files = 2;
  std::vector<int> dense_layers;
};

// Byte b of piece p of an expert.
inline std::byte TestByte(ExpertId id, size_t piece, uint64_t b) {
  return static_cast<std::byte>((b * 131 + piece * 17 + id.index * 7 + id.layer * 29 + b / 256) &
                                0xff);
}

class TestSource : public ExpertSource {
 public:
  explicit TestSource(TestSourceShape shape, std::vector<std::filesystem::path> names = {})
      : shape_(std::move(shape)), names_(std::move(names)) {
    if (names_.empty()) {
      for (int f = 0; f < shape_.files; ++f) names_.push_back("file" + std::to_string(f) + ".bin");
    }
    for (const uint64_t bytes : shape_.piece_bytes) layout_.blob_bytes += bytes;
    layout_.slot_bytes = RoundUp(std::max<uint64_t>(layout_.blob_bytes, 1), 4096);
    if (shape_.direct) {
      CHECK_EQ(shape_.piece_bytes.size(), 1u);
      CHECK_EQ(layout_.blob_bytes, layout_.slot_bytes);
    }
    std::vector<uint64_t> end(names_.size(), shape_.direct ? 0 : shape_.head_bytes);
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int e = 0; e < shape_.num_experts; ++e) {
        for (const uint64_t bytes : shape_.piece_bytes) {
          if (!HasLayer(layer)) continue;
          const auto file = static_cast<size_t>(layer) % names_.size();
          extents_.push_back({static_cast<int32_t>(file), end[file], bytes});
          end[file] += bytes + shape_.gap_bytes;
        }
        if (!HasLayer(layer)) extents_.resize(extents_.size() + shape_.piece_bytes.size());
      }
    }
    for (const uint64_t bytes : end) {
      contents_.emplace_back(bytes - std::min(bytes, shape_.gap_bytes), std::byte{0xee});
    }
    for (const ExpertId id : AllIds()) {
      const std::span<const Extent> extents = Extents(id);
      for (size_t p = 0; p < extents.size(); ++p) {
        std::byte* out = contents_[static_cast<size_t>(extents[p].file)].data() + extents[p].offset;
        for (uint64_t b = 0; b < extents[p].bytes; ++b) out[b] = TestByte(id, p, b);
      }
    }
  }

  const std::vector<std::filesystem::path>& files() const override { return names_; }
  std::span<const std::vector<std::filesystem::path>> replicas() const override {
    return all_places;
  }
  uint32_t DamagedReplicas(ExpertId /*id*/) const override { return damaged; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t layer) const override {
    return std::find(shape_.dense_layers.begin(), shape_.dense_layers.end(), layer) ==
           shape_.dense_layers.end();
  }
  std::span<const Extent> Extents(ExpertId id) const override {
    CHECK(HasLayer(id.layer));
    const size_t pieces = shape_.piece_bytes.size();
    return {extents_.data() + (id.layer * shape_.num_experts + id.index) * pieces, pieces};
  }
  bool direct() const override { return shape_.direct; }
  void Pack(ExpertId id, std::span<const std::span<const std::byte>> pieces,
            std::span<std::byte> slot) const override {
    CHECK(!shape_.direct);
    CHECK_EQ(slot.size(), layout_.slot_bytes);
    if (on_pack) on_pack(id);
    size_t at = 0;
    for (const std::span<const std::byte> piece : pieces) {
      std::memcpy(slot.data() + at, piece.data(), piece.size());
      at += piece.size();
    }
    CHECK_EQ(at, layout_.blob_bytes);
  }

  bool MustCheck(ExpertId id) const override { return on_check && must_check && must_check(id); }
  bool Check(ExpertId id, std::span<std::byte> slot) const override {
    CHECK_EQ(slot.size(), layout_.slot_bytes);
    on_check(id, slot);
    return !mended;
  }

  const TestSourceShape& shape() const { return shape_; }
  uint64_t expert_bytes() const { return layout_.blob_bytes; }
  ExpertId Id(int layer, int index) const {
    ExpertId id;
    id.layer = static_cast<uint16_t>(layer);
    id.index = static_cast<uint16_t>(index);
    return id;
  }
  std::vector<ExpertId> Ids(int layer, const std::vector<int>& indices) const {
    std::vector<ExpertId> ids;
    ids.reserve(indices.size());
    for (const int index : indices) ids.push_back(Id(layer, index));
    return ids;
  }
  std::vector<ExpertId> AllIds() const {
    std::vector<ExpertId> ids;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      if (!HasLayer(layer)) continue;
      for (int e = 0; e < shape_.num_experts; ++e) ids.push_back(Id(layer, e));
    }
    return ids;
  }
  // The content of the files. They end with the last expert's last byte.
  const std::vector<std::vector<std::byte>>& Contents() const { return contents_; }
  // Whether a blob is this expert's, byte for byte.
  bool IsBlobOf(ExpertId id, const std::byte* blob) const {
    for (const Extent& extent : Extents(id)) {
      const std::byte* wanted = contents_[static_cast<size_t>(extent.file)].data() + extent.offset;
      if (std::memcmp(blob, wanted, extent.bytes) != 0) return false;
      blob += extent.bytes;
    }
    return true;
  }

  std::function<void(ExpertId)> on_pack;  // called first by Pack; may throw
  // Of a direct source: what MustCheck and Check do; empty: nothing is checked.
  std::function<bool(ExpertId)> must_check;
  std::function<void(ExpertId, std::span<std::byte>)> on_check;
  // What replicas() and DamagedReplicas() say; the first one's files are `names`.
  std::vector<std::vector<std::filesystem::path>> all_places;
  uint32_t damaged = 0;
  bool mended = false;  // Check says that it has got other bytes

 private:
  TestSourceShape shape_;
  std::vector<std::filesystem::path> names_;
  ExpertLayout layout_;
  std::vector<Extent> extents_;
  std::vector<std::vector<std::byte>> contents_;
};

}  // namespace moesaic
