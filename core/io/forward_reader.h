// A reader of one file whose reads are mostly one behind the other.
#pragma once

#include <filesystem>
#include <memory>

#include "core/io/async_reader.h"

namespace moesaic {

// A few threads with pread through the system's cache of files, which may read ahead, and keep what
// it reads in large pages: that of ReadBackend::kBuffered is told not to. Otherwise as
// OpenAsyncReader.
std::unique_ptr<AsyncReader> OpenForwardReader(const std::filesystem::path& file, int depth);

}  // namespace moesaic
