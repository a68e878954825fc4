// SmallModel: a model of two layers on an emulated GPU, which reads a prompt and takes a few decode
// steps: what the tests of calls that fail and of streams in any order run.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/gpu/kernel_machine.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {

class SmallModel {
 public:
  struct Mode {
    const char* name;
    bool dense;     // the dense part is on the GPU too
    int64_t slots;  // of experts
  };
  static constexpr Mode kModes[] = {
      {"Experts", false, 64}, {"Dense", true, 64}, {"DenseAndFewSlots", true, 3}};

  explicit SmallModel(const Mode& mode)
      : machine_(MakeKernelMachine(uint64_t{8} << 20, why_not_)),
        model_(FixtureModel("qwen3_moe_bf16_window"), OptionsOf(mode)),
        tokens_(PromptOf(3, kPromptTokens + kSteps, static_cast<int>(model_.config().vocab_size))) {
  }

  // Logits of the prompt and of each step. Throws as the model does.
  std::vector<float> Answer() {
    auto sequence = model_.NewSequence(kPromptTokens + kSteps);
    sequence.decode_from = kPromptTokens;
    std::vector<float> logits =
        model_.Prefill(sequence, std::span(tokens_).first(kPromptTokens), kPromptTokens);
    for (size_t i = kPromptTokens; i < tokens_.size(); ++i) {
      const ModelHarness::Piece piece = {&sequence, {tokens_[i]}};
      const std::vector<float> step = model_.Run({&piece, 1});
      logits.insert(logits.end(), step.begin(), step.end());
    }
    return logits;
  }

  ModelHarness& model() { return model_; }

 private:
  static constexpr int kPromptTokens = 5;
  static constexpr int kSteps = 2;

  HarnessOptions OptionsOf(const Mode& mode) {
    HarnessOptions options;
    options.max_batch_tokens = 16;
    options.max_context_tokens = 32;
    options.kv_blocks = 4;
    options.devices = 1;
    options.device_slots = mode.slots;
    options.given_devices = {&machine_->device()};
    options.kernels = &machine_->kernels();
    options.dense_on_device = mode.dense;
    return options;
  }

  std::string why_not_;
  std::unique_ptr<KernelMachine> machine_;
  ModelHarness model_;
  std::vector<int32_t> tokens_;
};

inline void PrintTo(const SmallModel::Mode& mode, std::ostream* os) { *os << mode.name; }

}  // namespace moesaic
