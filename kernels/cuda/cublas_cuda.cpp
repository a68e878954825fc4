#include <cublas_v2.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/shared_library.h"
#include "core/device/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/internal/gemm_workspace.h"
#include "kernels/cuda/unpack.h"

namespace moesaic::cuda {
namespace {

static_assert(CUBLAS_VER_MAJOR == 13);
constexpr const char* kLibrary = "libcublas.so.13";

// cublasGemmEx in the library; the header has an inline function of this name besides.
using GemmFunction = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int,
                                        int, int, const void*, const void*, cudaDataType, int,
                                        const void*, cudaDataType, int, const void*, void*,
                                        cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

// What is used of the library, which stays loaded.
struct Cublas {
  decltype(&cublasCreate) create = nullptr;
  decltype(&cublasDestroy) destroy = nullptr;
  decltype(&cublasSetStream) set_stream = nullptr;
  decltype(&cublasSetWorkspace) set_workspace = nullptr;
  decltype(static_cast<GemmFunction>(&cublasGemmEx)) gemm = nullptr;
  decltype(&cublasGetStatusName) status_name = nullptr;
};

Cublas LoadCublas() {
  const SharedLibrary library("cuBLAS", kLibrary,
                              "install it, or name its folder in LD_LIBRARY_PATH");
  Cublas cublas;
  library.Find(cublas.create, "cublasCreate_v2");
  library.Find(cublas.destroy, "cublasDestroy_v2");
  library.Find(cublas.set_stream, "cublasSetStream_v2");
  library.Find(cublas.set_workspace, "cublasSetWorkspace_v2");
  library.Find(cublas.gemm, "cublasGemmEx");
  library.Find(cublas.status_name, "cublasGetStatusName");
  return cublas;
}

LaunchResult Refuse(const char* why) {
  return {static_cast<int>(cudaErrorInvalidValue), "cublasGemmEx", why};
}

class CublasGemm final : public Gemm {
 public:
  CublasGemm(Stream& stream, const DeviceSpan& workspace) : cublas_(LoadCublas()), stream_(stream) {
    CHECK(stream.device().kind() == DeviceKind::kCuda);
    CHECK_GT(workspace.bytes(), kCublasBytes);
    rows_ = reinterpret_cast<uint16_t*>(workspace.data() + kCublasBytes);
    rows_bytes_ = workspace.bytes() - kCublasBytes;
    // The stream's GPU is the current one there, and a handle is of the current one.
    struct Made {
      cublasStatus_t status = CUBLAS_STATUS_NOT_INITIALIZED;
      const char* call = "";
      cublasHandle_t handle = nullptr;
      cudaStream_t stream = nullptr;
    };
    Made made;
    stream.Launch([this, made = &made, memory = workspace.data()](StreamHandle on) -> LaunchResult {
      made->stream = on;
      made->call = "cublasCreate";
      made->status = cublas_.create(&made->handle);
      if (made->status != CUBLAS_STATUS_SUCCESS) return {};
      made->call = "cublasSetStream";
      made->status = cublas_.set_stream(made->handle, on);
      if (made->status != CUBLAS_STATUS_SUCCESS) return {};
      // In this order: cublasSetStream takes the workspace away.
      made->call = "cublasSetWorkspace";
      made->status = cublas_.set_workspace(made->handle, memory, kCublasBytes);
      return {};
    });
    handle_ = made.handle;
    on_ = made.stream;
    if (on_ == nullptr) ThrowIfFailed(stream.Synchronize());  // it was in error
    if (made.status == CUBLAS_STATUS_SUCCESS) return;
    Destroy();
    Fail(ErrorKind::kUnavailable, "cuBLAS does not work on {}: {}: {}; leave --gpu-gemm out",
         stream.device().name(), made.call, cublas_.status_name(made.status));
  }

  // When what is queued has run: a graph that has recorded products is not replayed any more.
  ~CublasGemm() override {
    static_cast<void>(stream_.Synchronize());
    Destroy();
  }

  LaunchResult Product(const ProductArgs& args, StreamHandle stream) override {
    if (stream != on_) return Refuse("another stream than its own");
    if (args.groups != 1 || args.offsets != nullptr || args.weights != nullptr ||
        args.x_rows != nullptr || args.y_rows != nullptr) {
      return Refuse("rows that do not lie one behind the other");
    }
    if (args.rows < 1 || args.rows > 65535 || args.n < 1 || args.k < 1) {
      return Refuse("number of rows out of range, or an empty matrix");
    }
    // Both operands are zero behind k: inputs are whole vectors of 16 bytes.
    const int64_t stride = ActivationStride(args.k);
    const auto room = static_cast<int64_t>(rows_bytes_ / GemmRowBytes(args.k));
    const int64_t most = room / kPanelOutputs * kPanelOutputs;
    if (most == 0) return Refuse("a workspace too small for this matrix");
    const float one = 1;
    const float of_y = args.accumulate ? 1 : 0;
    for (int64_t first = 0; first < args.n; first += most) {
      const int64_t outputs = std::min(most, args.n - first);
      const LaunchResult unpacked = UnpackRows({.matrix = args.matrix,
                                                .type = args.type,
                                                .k = args.k,
                                                .first = first,
                                                .outputs = outputs,
                                                .rows = rows_},
                                               stream);
      if (!unpacked.ok()) return unpacked;
      // In cuBLAS's columns: Y^T [n, rows] = W X^T, a column of which is a row here.
      const cublasStatus_t status = cublas_.gemm(
          handle_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(outputs), static_cast<int>(args.rows),
          static_cast<int>(stride), &one, rows_, CUDA_R_16BF, static_cast<int>(stride), args.x,
          CUDA_R_16BF, static_cast<int>(stride), &of_y, args.y + first, CUDA_R_32F,
          static_cast<int>(args.n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      if (status != CUBLAS_STATUS_SUCCESS) {
        return {static_cast<int>(cudaErrorUnknown), "cublasGemmEx", cublas_.status_name(status)};
      }
    }
    return {};
  }

 private:
  void Destroy() {
    if (handle_ == nullptr) return;
    // With the GPU that it was made on as the current one; a stream in error calls nobody.
    stream_.Launch([this](StreamHandle) -> LaunchResult {
      static_cast<void>(cublas_.destroy(handle_));
      handle_ = nullptr;
      return {};
    });
    if (handle_ != nullptr) static_cast<void>(cublas_.destroy(handle_));
    handle_ = nullptr;
  }

  const Cublas cublas_;
  Stream& stream_;
  cublasHandle_t handle_ = nullptr;
  StreamHandle on_ = nullptr;
  uint16_t* rows_ = nullptr;  // of the device
  uint64_t rows_bytes_ = 0;
};

}  // namespace

std::string WhyNoCublas() {
  try {
    LoadCublas();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Gemm> MakeCublas(Stream& stream, const DeviceSpan& workspace) {
  return std::make_unique<CublasGemm>(stream, workspace);
}

}  // namespace moesaic::cuda
