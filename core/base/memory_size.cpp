#include "core/base/memory_size.h"

#include "core/base/check.h"
#include "core/base/units.h"

namespace moesaic {

MemorySize MemorySize::Parse(std::string_view text, std::string_view what) {
  MemorySize size;
  size.text_ = text;
  if (text == "auto") return size;
  if (text.find('%') != std::string_view::npos) {
    size.kind_ = Kind::kShare;
    size.percent_ = ParsePercent(text, what);
  } else {
    size.kind_ = Kind::kBytes;
    size.bytes_ = ParseBytes(text, what);
  }
  return size;
}

uint64_t MemorySize::BytesOf(uint64_t whole_bytes) const {
  CHECK(!is_auto());
  if (kind_ == Kind::kBytes) return bytes_;
  return static_cast<uint64_t>(static_cast<double>(whole_bytes) * percent_ / 100.0);
}

}  // namespace moesaic
