// A libcublas.so.13 for tests: the functions that kernels/cuda/cublas_cuda.cpp calls, on the
// emulated GPUs of the program. A product is computed on the host, summed in double precision and
// rounded once, in stream order. What cuBLAS would do at a price that nobody wants is a defect: to
// take memory of its own because it has no workspace (cublasSetStream takes it away), to be called
// with another GPU than its own as the current one. What it uses as workspace has NaNs in it
// afterwards. Only products of bf16 matrices into f32 are there.
//
// Thread contract: cuBLAS's: one caller of a handle at a time.
#include <cublas_v2.h>
#include <library_types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/gpu/interpreter/library_call.h"

using moesaic::ptx::BeginLibraryCall;
using moesaic::ptx::ReportDefect;
using moesaic::ptx::TouchedMemory;

struct cublasContext {
  int gpu = 0;
  cudaStream_t stream = nullptr;
  unsigned char* workspace = nullptr;  // null: memory of its own
  size_t workspace_bytes = 0;
};

namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;  // cuBLAS documentation, cublasSetWorkspace
constexpr size_t kSpoiltBytes = 4096;           // at either end of the workspace

float Widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// False: it answers `status`.
bool Begun(const char* call, cublasHandle_t handle, bool records, cublasStatus_t& status) {
  if (handle == nullptr) {
    status = CUBLAS_STATUS_NOT_INITIALIZED;
    return false;
  }
  if (BeginLibraryCall(call, records) != cudaSuccess) {
    status = CUBLAS_STATUS_EXECUTION_FAILED;
    return false;
  }
  if (moesaic::ptx::CurrentGpu() != handle->gpu) {
    ReportDefect(std::string(call) + " with another GPU than the handle's as the current one");
  }
  return true;
}

// The bytes of a matrix whose `columns` columns of `rows` elements begin `stride` elements apart.
uint64_t Extent(int rows, int columns, int stride, size_t element_bytes) {
  return (static_cast<uint64_t>(columns - 1) * static_cast<uint64_t>(stride) +
          static_cast<uint64_t>(rows)) *
         element_bytes;
}

// c [m, n] = alpha a^T b + beta c, all by columns: a [k, m], b [k, n].
struct Product {
  int m, n, k;
  float alpha, beta;
  const uint16_t* a;
  int64_t a_stride;
  const uint16_t* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;

  void Run() const {
    std::vector<float> left(static_cast<size_t>(k));
    for (int row = 0; row < m; ++row) {
      for (int i = 0; i < k; ++i) left[static_cast<size_t>(i)] = Widen(a[row * a_stride + i]);
      for (int column = 0; column < n; ++column) {
        double sum = 0;
        for (int i = 0; i < k; ++i) {
          sum += static_cast<double>(left[static_cast<size_t>(i)]) *
                 static_cast<double>(Widen(b[column * b_stride + i]));
        }
        float& to = c[column * c_stride + row];
        // What is not added to is not read: it may be no number.
        to = alpha * static_cast<float>(sum) + (beta == 0 ? 0.0f : beta * to);
      }
    }
  }
};

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (BeginLibraryCall("cublasCreate", false) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasContext{moesaic::ptx::CurrentGpu(), nullptr, nullptr, 0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (!Begun("cublasSetStream", handle, true, status)) return status;
  handle->stream = stream;
  handle->workspace = nullptr;
  handle->workspace_bytes = 0;
  return status;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (!Begun("cublasSetWorkspace", handle, true, status)) return status;
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  handle->workspace = static_cast<unsigned char*>(workspace);
  handle->workspace_bytes = bytes;
  return status;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (!Begun("cublasGemmEx", handle, true, status)) return status;
  if (transa != CUBLAS_OP_T || transb != CUBLAS_OP_N || a_type != CUDA_R_16BF ||
      b_type != CUDA_R_16BF || c_type != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F ||
      algorithm != CUBLAS_GEMM_DEFAULT) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (m < 1 || n < 1 || k < 1 || lda < k || ldb < k || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
  if (handle->workspace == nullptr) {
    ReportDefect("cublasGemmEx without a workspace, for which cuBLAS takes memory of the GPU");
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  const Product product = {m,
                           n,
                           k,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           static_cast<const uint16_t*>(a),
                           lda,
                           static_cast<const uint16_t*>(b),
                           ldb,
                           static_cast<float*>(c),
                           ldc};
  const std::vector<TouchedMemory> memory = {
      {"first matrix", a, Extent(k, m, lda, sizeof(uint16_t))},
      {"second matrix", b, Extent(k, n, ldb, sizeof(uint16_t))},
      {"result", c, Extent(m, n, ldc, sizeof(float))},
      {"workspace", handle->workspace, handle->workspace_bytes}};
  unsigned char* const workspace = handle->workspace;
  const size_t bytes = handle->workspace_bytes;
  const cudaError_t queued = moesaic::ptx::QueueLibraryWork(
      "cublasGemmEx", handle->stream, memory, [product, workspace, bytes] {
        const size_t spoilt = std::min(bytes, kSpoiltBytes);
        std::memset(workspace, 0xff, spoilt);
        std::memset(workspace + bytes - spoilt, 0xff, spoilt);
        product.Run();
      });
  return queued == cudaSuccess ? status : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another status";
  }
}

}  // extern "C"
