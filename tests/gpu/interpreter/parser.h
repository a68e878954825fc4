// PTX text to kernels.
#pragma once

#include <string_view>
#include <vector>

#include "tests/gpu/interpreter/kernel.h"

namespace moesaic::ptx {

// All kernels of a module. Throws Error: kCorrupt when the text is not PTX, kUnsupported when it
// has an instruction or a directive that the interpreter does not know. Both name the line.
std::vector<Kernel> ParseModule(std::string_view text);

}  // namespace moesaic::ptx
