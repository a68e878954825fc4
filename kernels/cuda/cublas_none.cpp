// What a build without cuBLAS answers.
#include "core/base/error.h"
#include "kernels/cuda/gemm.h"

namespace moesaic::cuda {

std::string WhyNoCublas() {
  return "this program was built without cuBLAS; build it with the preset `cuda` where cublas_v2.h "
         "is";
}

std::unique_ptr<Gemm> MakeCublas(Stream& /*stream*/, const DeviceSpan& /*workspace*/) {
  Fail(ErrorKind::kUnsupported, "cuBLAS: {}", WhyNoCublas());
}

}  // namespace moesaic::cuda
