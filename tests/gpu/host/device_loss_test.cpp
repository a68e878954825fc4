// Devices that compute and fail: what they could not do the host does, and no request sees it. On
// emulated devices, which fail when they are told to.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/host/host_kernels.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/relative_distance.h"

namespace moesaic {
namespace {

constexpr int64_t kTokens = 8;

HarnessOptions Options() {
  HarnessOptions options;
  options.max_batch_tokens = 16;
  options.max_context_tokens = 64;
  options.kv_blocks = 8;
  options.devices = 2;
  options.device_slots = 20;
  options.kernels = &HostKernels();
  return options;
}

std::vector<float> Logits(ModelHarness& model) {
  const std::vector<int32_t> tokens =
      PromptOf(5, static_cast<int>(kTokens), static_cast<int>(model.config().vocab_size));
  auto sequence = model.NewSequence(kTokens);
  return model.Prefill(sequence, tokens, kTokens);
}

std::vector<float> OnTheHost() {
  HarnessOptions options = Options();
  options.devices = 0;
  options.kernels = nullptr;
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  return Logits(model);
}

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_LE(RelativeDistance(actual, expected), 1.5e-2);
}

// Copies are those of experts, of rows and tables, and back: whichever it is at.
TEST(DeviceLossTest, ADeviceIsLostAtACopy) {
  const std::vector<float> expected = OnTheHost();
  for (const uint64_t copy : {1, 2, 9, 30, 61}) {
    HarnessOptions options = Options();
    options.faults = {{.lost_at_copy = copy}, {}};
    ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
    ExpectClose(Logits(model), expected);
    EXPECT_TRUE(model.device(0).lost().has_value()) << copy;
    EXPECT_FALSE(model.device(1).lost().has_value());
  }
}

// Both are gone: the same bits as without devices.
TEST(DeviceLossTest, AllDevicesAreLost) {
  const std::vector<float> expected = OnTheHost();
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, Options());
  model.device(0).Lose();
  model.device(1).Lose();
  EXPECT_EQ(Logits(model), expected);
}

TEST(DeviceLossTest, CopiesThatFail) {
  const std::vector<float> expected = OnTheHost();
  HarnessOptions options = Options();
  options.faults = {{.copy_failure_probability = 0.3, .seed = 1},
                    {.copy_failure_probability = 0.02, .seed = 2}};
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  ExpectClose(Logits(model), expected);
  EXPECT_FALSE(model.device(0).lost().has_value());
}

// A launch that is refused is a bug of this program, and costs speed only.
TEST(DeviceLossTest, AKernelThatIsRefused) {
  cuda::Kernels kernels = HostKernels();
  kernels.swiglu = [](const cuda::SwiGluArgs&, cuda::StreamHandle) -> LaunchResult {
    return {.code = 1, .kernel = "swiglu", .message = "refused on purpose"};
  };
  HarnessOptions options = Options();
  options.kernels = &kernels;
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  EXPECT_EQ(Logits(model), OnTheHost());
}

}  // namespace
}  // namespace moesaic
