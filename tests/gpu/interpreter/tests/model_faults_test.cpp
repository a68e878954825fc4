// Calls of the CUDA runtime that fail, at any place of a prompt and of decode steps of a whole
// model of two layers: what comes out is the answer or the error of the GPU, never another answer
// and never a wait that does not end.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/gpu/interpreter/control.h"
#include "tests/gpu/interpreter/tests/small_model.h"
#include "tests/serving/model/relative_distance.h"

namespace moesaic {
namespace {

// Of the calls of a run so many are left out between two that fail, one run each; a prime number,
// so that the places differ from layer to layer.
constexpr uint64_t kStride = 11;

struct Outcome {
  std::vector<float> logits;
  std::string error;
  uint64_t calls = 0;
  std::string failed;  // the call
};

Outcome RunModel(const SmallModel::Mode& mode, uint64_t failing, cudaError_t code) {
  Outcome outcome;
  ptx::RestoreGpu(0);
  SmallModel small(mode);
  const uint64_t before = ptx::RuntimeCalls();
  ptx::FailRuntimeCall(failing, code);
  try {
    outcome.logits = small.Answer();
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  outcome.calls = ptx::RuntimeCalls() - before;
  outcome.failed = ptx::FailedRuntimeCall();
  ptx::FailRuntimeCall(UINT64_MAX, 0);
  return outcome;
}

class CudaModelFaultsTest : public testing::TestWithParam<SmallModel::Mode> {};

TEST_P(CudaModelFaultsTest, EndWithTheAnswerOrTheError) {
  const Outcome expected = RunModel(GetParam(), UINT64_MAX, cudaSuccess);
  ASSERT_EQ(expected.error, "");
  int ended_with_errors = 0;
  int answered = 0;
  for (const cudaError_t code : {cudaErrorMemoryAllocation, cudaErrorIllegalAddress}) {
    for (uint64_t number = code % kStride; number < expected.calls; number += kStride) {
      const Outcome outcome = RunModel(GetParam(), number, code);
      const std::string where = "call " + std::to_string(number) + ", " + outcome.failed +
                                ", error " + std::to_string(code);
      if (!outcome.error.empty()) {
        EXPECT_NE(outcome.error.find("cuda:0"), std::string::npos)
            << where << ": " << outcome.error;
        ++ended_with_errors;
        continue;
      }
      ASSERT_EQ(outcome.logits.size(), expected.logits.size()) << where;
      // What the GPU could not do the host does, close to it but not to the bit.
      EXPECT_LE(RelativeDistance(outcome.logits, expected.logits), 1.5e-2) << where;
      ++answered;
    }
  }
  EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
  EXPECT_GT(answered, 0);
  if (GetParam().dense) {
    EXPECT_GT(ended_with_errors, 0);
  }
  RecordProperty("calls", static_cast<int>(expected.calls));
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaModelFaultsTest, testing::ValuesIn(SmallModel::kModes),
                         [](const auto& mode) { return mode.param.name; });

}  // namespace
}  // namespace moesaic
