// LearnedSection: arrays of numbers that were learned, as a part of a state file. Blocks of zeros
// are left out: a young predictor is mostly zeros.
//
//   per array, in the constructor's order: u64 values, u64 blocks, then for each block its u32
//   number, ascending, and 32 values (the last block is padded with zeros)
//
// All little-endian. Borrows the arrays, which may not move; thread contract of StateSection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "tracer/state_section.h"

namespace moesaic {

struct LearnedArray {
  std::variant<std::span<float>, std::span<double>, std::span<uint32_t>, std::span<int16_t>> values;
  // Stored values outside are refused.
  double low = 0;
  double high = 1e15;
};

class LearnedSection final : public StateSection {
 public:
  // `name` is a literal.
  LearnedSection(std::string_view name, uint32_t version, std::vector<LearnedArray> arrays);

  std::string_view name() const override { return name_; }
  uint32_t version() const override { return version_; }
  std::vector<std::byte> Save() const override;
  void Load(uint32_t version, std::span<const std::byte> bytes) override;

 private:
  std::string_view name_;
  uint32_t version_;
  std::vector<LearnedArray> arrays_;
};

}  // namespace moesaic
