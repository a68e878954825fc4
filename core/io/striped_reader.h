// StripedReader: an AsyncReader over several links that lead to the same bytes: replicas of the
// files on several disks, and on other machines (remote_reader.h). Reads are spread over the links,
// or one is split over them, so that each ends as soon as the measured rates allow
// (stripe_schedule.h).
//
// A link that fails a read (an error, or a file that has become shorter) costs time only: another
// one reads the same bytes. That is said once. A read fails when no link can give it.
//
// Thread contract: as AsyncReader's. Each link has a thread of its own that drives its reader.
// Nothing is allocated after construction but the text of messages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/io/async_reader.h"
#include "core/io/remote_reader.h"
#include "core/io/stripe_schedule.h"

namespace moesaic {

struct StripedLink {
  std::string name;  // for messages and metrics
  std::unique_ptr<AsyncReader> reader;
};

// file_bytes: [files] how long each file is in every link. depth: reads in flight over all links;
// each takes them as its own depth allows, the others wait at that link. Null clock: the steady
// one.
std::unique_ptr<AsyncReader> MakeStripedReader(std::vector<StripedLink> links,
                                               std::vector<uint64_t> file_bytes, int depth,
                                               const Clock* clock = nullptr);

// replicas: [links] the same files (in one order and of the same sizes) in each. remotes: further
// links, to servers that have the one file. depth: of each link. bytes_per_s: what each may carry
// (throttled_reader.h); 0: no limit. Throws what OpenAsyncReader and MakeRemoteReader throw, and
// Error(kCorrupt) that names two files of different sizes.
std::unique_ptr<AsyncReader> OpenStripedReader(
    std::span<const std::vector<std::filesystem::path>> replicas,
    std::span<const RemoteStore> remotes, ReadBackend backend, int depth, uint64_t bytes_per_s);

}  // namespace moesaic
