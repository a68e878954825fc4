// A build without CUDA knows the word.
#include <gtest/gtest.h>

#include <string>

#include "core/device/cuda_device.h"
#include "core/device/nccl_collective.h"
#include "kernels/cuda/gemm.h"

namespace moesaic {
namespace {

TEST(NoCudaTest, SaysThatItHasNone) {
  const CudaMachine machine = FindCudaDevices();
  EXPECT_TRUE(machine.devices.empty());
  EXPECT_NE(machine.why_none.find("without CUDA"), std::string::npos);
  EXPECT_EQ(ConnectCudaPeers({}), 0);
}

TEST(NoCudaTest, ADeviceThatIsAskedForIsAClearError) {
  try {
    CreateCudaDevice({.ordinal = 1, .capacity_bytes = 1 << 20});
    FAIL() << "made a CUDA device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    const std::string text = error.what();
    EXPECT_NE(text.find("cuda:1"), std::string::npos);
    EXPECT_NE(text.find("make build-cuda"), std::string::npos);
  }
}

TEST(NoCudaTest, NcclIsAClearError) {
  EXPECT_FALSE(BuiltWithNccl());
  try {
    MakeNcclCollective({});
    FAIL() << "made a collective";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("peer copies"), std::string::npos);
  }
}

TEST(NoCudaTest, CublasIsNotThere) {
  EXPECT_NE(cuda::WhyNoCublas().find("without cuBLAS"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
