// The PTX in the fat binary that nvcc puts into an object file. The format is not documented; what
// is known of it: CUDA's fatbinary_section.h (the wrapper), and the layout below as nvcc 13.0
// writes it.
#pragma once

#include <cstddef>
#include <string>

namespace moesaic::ptx {

// Of the newest architecture of which there is PTX. `binary` begins with the fat binary's header.
// Throws Error(kUnsupported): there is none, or it is compressed in an unknown way.
std::string PtxOf(const std::byte* binary);

}  // namespace moesaic::ptx
