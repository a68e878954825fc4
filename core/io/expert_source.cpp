#include "core/io/expert_source.h"

#include <fmt/format.h>

namespace moesaic {

std::string ExpertSource::FailedRead(ExpertId id, const Extent& piece,
                                     const std::string& why) const {
  return fmt::format(
      "{}: reading {} bytes at offset {} for expert {} of layer {} failed: {}; check the disk (the "
      "kernel's log says more) or move the model to another one",
      files()[static_cast<size_t>(piece.file)].string(), piece.bytes, piece.offset, id.index,
      id.layer, why);
}

}  // namespace moesaic
