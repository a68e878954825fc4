// ExpertId: which expert of which layer. Plain data.
#pragma once

#include <compare>
#include <cstdint>

namespace moesaic {

enum class Stack : uint8_t { kDecoder, kEncoder };

struct ExpertId {
  uint16_t model = 0;  // index of the model among those served by this process
  Stack stack = Stack::kDecoder;
  uint16_t layer = 0;  // layer of the model, dense layers counted
  uint16_t index = 0;  // expert within the layer

  auto operator<=>(const ExpertId&) const =
      default;  // NOLINT(modernize-use-nullptr): clang 14 errs
};

}  // namespace moesaic
