#include "serving/plan/line_planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "serving/model/layer_pass.h"
#include "serving/plan/batch_prediction.h"

namespace moesaic {
namespace {

// Times as many lines as requests run, and times as many tokens as a step has, that are tried.
constexpr std::array<int64_t, 8> kTimes = {1, 2, 3, 4, 6, 8, 12, kMostLinesPerSequence};

// What is this much slower than the fastest is as good, if it is smaller.
constexpr double kAsFast = 0.02;

struct Line {
  double prompt = 0;
  double answer = 0;
};

Line LineOf(int64_t max_context_tokens) {
  constexpr double kPrompt = kLinePromptTokens;
  constexpr double kAnswer = kLineAnswerTokens;
  const double fits = std::min(1.0, static_cast<double>(max_context_tokens) / (kPrompt + kAnswer));
  return {std::max(1.0, fits * kPrompt), std::max(1.0, fits * kAnswer)};
}

// Lines whose keys and values have room, half of their answers on average: those beyond would be
// preempted and computed again.
double LinesWithRoom(const EnginePlan& plan, const Line& line, int64_t step_tokens) {
  const auto tokens = static_cast<int64_t>(std::ceil(line.prompt + line.answer / 2));
  const int64_t blocks = std::max<int64_t>(1, plan.kv_needs.Most(tokens, step_tokens));
  return std::max(1.0, static_cast<double>(plan.num_kv_blocks) / static_cast<double>(blocks));
}

// Slots of experts beside the rows of so many tokens, where these take their memory from experts
// when nothing else is left.
int64_t SlotsBeside(const EngineOptions& options, const ModelConfig& config, const EnginePlan& plan,
                    int64_t tokens) {
  if (!options.expert_memory.is_auto() || plan.slot_bytes == 0) return plan.expert_slots;
  const uint64_t all = plan.expert_budget_bytes + plan.module_batches.bytes;
  uint64_t rows = LayerPass::Bytes(config, tokens);
  rows -= std::min(rows, plan.unused_bytes);
  const uint64_t left = std::min(plan.all_experts_bytes, all > rows ? all - rows : 0);
  return static_cast<int64_t>(left / plan.slot_bytes);
}

std::vector<int64_t> Tried(int64_t fixed, int64_t unit, int64_t most) {
  if (fixed > 0) return {std::min(fixed, most)};
  std::vector<int64_t> tried;
  for (const int64_t times : kTimes) {
    if (times * unit <= most) tried.push_back(times * unit);
  }
  if (tried.empty()) tried.push_back(most);
  return tried;
}

}  // namespace

double PredictLines(const EngineOptions& options, const ModelConfig& config, const EnginePlan& plan,
                    const ModuleCosts& costs, int64_t sequences, int64_t tokens) {
  const Line line = LineOf(plan.max_context_tokens);
  const int64_t step = options.max_num_batched_tokens;
  // Each line that decodes brings a part of a prompt along, for when one ends.
  const double per_line = 1 + line.prompt / line.answer;
  const double lines = std::min({static_cast<double>(sequences), LinesWithRoom(plan, line, step),
                                 std::max(1.0, static_cast<double>(tokens) / per_line)});
  IterationLoad load;
  load.decode_sequences = std::max<int64_t>(1, std::llround(lines));
  load.decode_context = std::llround(lines * (line.prompt + line.answer / 2));
  load.prefill_tokens = std::llround(lines * line.prompt / line.answer);
  load.prefill_positions =
      std::llround(static_cast<double>(load.prefill_tokens) * (line.prompt + 1) / 2);
  load.prompts_ended = std::llround(lines / line.answer);

  BatchSizes sizes;
  sizes.max_num_seqs = sequences;
  sizes.max_batch_tokens = tokens;
  sizes.max_context_tokens = plan.max_context_tokens;
  sizes.num_kv_blocks = plan.num_kv_blocks;
  sizes.expert_slots = SlotsBeside(options, config, plan, tokens);
  // While a layer computes the next one is read; the others are as they were.
  const int64_t all = config.num_sparse_layers() * config.num_experts();
  if (sizes.expert_slots < all) {
    sizes.buffers = std::clamp<int64_t>(2 * config.num_experts(), 1, sizes.expert_slots);
  }
  const BatchPassModel passes(config, costs, sizes, plan.slot_bytes);
  PlannedPass pass = passes.PassOf(load, false);
  // A layer runs in blocks of a step's tokens, each of which goes to nearly all its experts.
  const auto rows = static_cast<double>(load.decode_sequences + load.prefill_tokens);
  const double more_blocks = std::ceil(rows / static_cast<double>(step)) - 1;
  pass.expert_s += more_blocks * costs[Module::kExpert].fixed_s;
  pass.pre_attention_s += more_blocks * costs[Module::kAttentionIn].fixed_s;
  pass.post_attention_s +=
      more_blocks * (costs[Module::kOutput].fixed_s + costs[Module::kRouter].fixed_s);
  const double seconds = SimulatePass(pass).seconds;
  return seconds > 0 ? rows / seconds : 0;
}

PlannedLines PlanLines(const EngineOptions& options, const ModelConfig& config,
                       const EnginePlan& plan, const ModuleCosts& costs) {
  std::vector<PlannedLines> found;
  double best = 0;
  const int64_t most_lines = kMostLinesPerSequence * options.max_num_seqs;
  for (const int64_t tokens :
       Tried(options.batch_num_batched_tokens, options.max_num_batched_tokens,
             plan.module_batches.most_tokens)) {
    for (const int64_t lines :
         Tried(options.batch_num_seqs, options.max_num_seqs,
               options.batch_num_seqs > 0 ? options.batch_num_seqs : most_lines)) {
      const double rate = PredictLines(options, config, plan, costs, lines, tokens);
      found.push_back({lines, tokens, rate});
      best = std::max(best, rate);
    }
  }
  // The first ones have the fewest rows, and of these the fewest lines.
  for (const PlannedLines& lines : found) {
    if (lines.tokens_per_s >= (1 - kAsFast) * best) return lines;
  }
  return found.front();
}

}  // namespace moesaic
