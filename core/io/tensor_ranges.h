// The ranges of a file that its tensors take. Internal to core/io.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/io/checkpoint.h"

namespace moesaic {

// Throws Error(kCorrupt) naming two tensors of a file that share bytes.
void CheckNoOverlap(const std::map<std::string, TensorInfo>& tensors, std::string_view file);

}  // namespace moesaic
