#include "core/base/error.h"
#include "core/device/nccl_collective.h"

namespace moesaic {

bool BuiltWithNccl() { return false; }

std::unique_ptr<Collective> MakeNcclCollective(std::span<Stream* const>) {
  Fail(ErrorKind::kUnsupported,
       "this program was built without NCCL; build it with the preset `cuda` where nccl.h and "
       "libnccl are, or use peer copies");
}

}  // namespace moesaic
