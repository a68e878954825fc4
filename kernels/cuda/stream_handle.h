// The stream that a kernel is queued on, without CUDA's headers: what Stream::Launch
// (core/device/stream.h) hands out.
#pragma once

struct CUstream_st;

namespace moesaic::cuda {

using StreamHandle = CUstream_st*;

}  // namespace moesaic::cuda
