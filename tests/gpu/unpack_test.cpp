// Packed weights as rows, value by value.
#include "kernels/cuda/unpack.h"

#include "tests/gpu/gpu_test_util.h"

namespace moesaic {
namespace {

using testing_util::CudaKernelTest;
using testing_util::GpuType;
using testing_util::kGpuTypes;
using testing_util::Weights;

class CudaUnpackTest : public CudaKernelTest {
 protected:
  void Check(WeightType type, int64_t n, int64_t k, int64_t first, int64_t outputs) {
    SCOPED_TRACE(fmt::format("{} n={} k={} first={} outputs={}", WeightTypeName(type), n, k, first,
                             outputs));
    const Weights w(reference_, random_.Normals(n * k), n, k, type);
    const auto matrix = Upload(w.matrix);
    const int64_t stride = cuda::ActivationStride(k);
    const auto rows = Output<uint16_t>(outputs * stride);
    Run([&](cuda::StreamHandle stream) {
      return cuda::UnpackRows({.matrix = matrix.data(),
                               .type = GpuType(type),
                               .k = k,
                               .first = first,
                               .outputs = outputs,
                               .rows = rows.data()},
                              stream);
    });
    const std::vector<uint16_t> read = rows.Read();
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < stride; ++i) {
        const uint16_t expected =
            i < k ? F32ToBf16(w.values[static_cast<size_t>((first + o) * k + i)]) : uint16_t{0};
        ASSERT_EQ(read[static_cast<size_t>(o * stride + i)], expected) << o << "," << i;
      }
    }
  }
};

TEST_F(CudaUnpackTest, RowsAreThoseThatWerePacked) {
  for (const WeightType type : kGpuTypes) {
    for (const int64_t k : {1, 31, 32, 33, 64, 65, 130}) Check(type, 20, k, 0, 20);
    for (const int64_t n : {1, 16, 17, 33}) Check(type, n, 40, 0, n);
    Check(type, 70, 72, 16, 32);
    Check(type, 70, 72, 48, 22);
  }
}

TEST_F(CudaUnpackTest, OutputsBeginAPanel) {
  EXPECT_FALSE(cuda::UnpackRows({.k = 16, .first = 8, .outputs = 16}, nullptr).ok());
  EXPECT_FALSE(cuda::UnpackRows({.k = 16, .first = -16, .outputs = 16}, nullptr).ok());
}

}  // namespace
}  // namespace moesaic
