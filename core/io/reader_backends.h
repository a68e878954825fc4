// The implementations behind OpenAsyncReader. Internal to core/io.
#pragma once

#include <memory>
#include <vector>

#include "core/base/file.h"
#include "core/io/async_reader.h"

namespace moesaic {

// O_DIRECT needs offsets, sizes and addresses that are multiples of the device's logical block; 4
// KiB covers every common one.
constexpr uint64_t kDirectAlignmentBytes = 4096;

// io_uring on files opened with O_DIRECT. Returns null, with `error` set to an errno value, when
// the kernel does not give us a ring (too old, or blocked by seccomp as Docker does by default);
// `files` is then untouched.
std::unique_ptr<AsyncReader> MakeUringReader(std::vector<File>& files, int depth, int& error);

// A few threads with pread. `direct`: the files were opened with O_DIRECT. Else `scattered`: the
// system reads nothing that was not asked for.
std::unique_ptr<AsyncReader> MakePoolReader(std::vector<File> files, bool direct, int depth,
                                            bool scattered = true);

std::unique_ptr<AsyncReader> MakeMappedReader(std::vector<File> files, int depth);

// CHECKs what ReadRequest demands.
void CheckRequest(const ReadRequest& request, size_t files, bool aligned_only);

}  // namespace moesaic
