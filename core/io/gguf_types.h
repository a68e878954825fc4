// GgufType: how the values of a tensor lie in a GGUF file, in blocks of so many values and bytes
// (ggml, src/ggml-common.h). Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

struct GgufType {
  uint32_t id = 0;
  std::string_view name;  // "Q4_K"
  int64_t block_values = 0;
  int64_t block_bytes = 0;
};

// Null: an id without a size that is known here (GgufTypeText says what it is).
const GgufType* FindGgufType(uint32_t id);
const GgufType* FindGgufType(std::string_view name);

// "Q4_K", "139 (a type of ik_llama.cpp's own)", "57 (unknown)": for messages.
std::string GgufTypeText(uint32_t id);

}  // namespace moesaic
