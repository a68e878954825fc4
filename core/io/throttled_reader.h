// MakeThrottledReader: an AsyncReader that carries no more than so many bytes per second, as if the
// files lay on a slower disk. Bytes are really read; a completion is held back until a disk of that
// rate, which reads one request after another, would have ended. Nothing waits in a busy loop.
//
// Thread contract: AsyncReader's.
#pragma once

#include <memory>

#include "core/io/async_reader.h"

namespace moesaic {

// bytes_per_s > 0.
std::unique_ptr<AsyncReader> MakeThrottledReader(std::unique_ptr<AsyncReader> reader,
                                                 double bytes_per_s);

}  // namespace moesaic
