// A Collective by NCCL, in builds that found it (nccl.h and libnccl, preset cuda). The library is
// loaded when it is asked for: the program starts without it.
//
// NCCL's kernels wait for each other, for ever if a GPU is gone. A thread asks the streams ten
// times a second whether their devices live, and when one is lost takes back what is queued; what
// it was to bring is then undefined on the others, whose streams are in error behind the next
// Gather: who uses what was gathered asks the streams of all devices first.
#pragma once

#include <memory>
#include <span>

#include "core/device/collective.h"

namespace moesaic {

// Whether this build has it.
bool BuiltWithNccl();

// streams[d] is of device d, CUDA devices on GPUs of their own. Throws Error(kUnsupported) in a
// build without NCCL, kNotFound when the library cannot be loaded, and kUnavailable when NCCL does
// not want these GPUs.
std::unique_ptr<Collective> MakeNcclCollective(std::span<Stream* const> streams);

}  // namespace moesaic
