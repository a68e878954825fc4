#include "serving/engine/routing_recorder.h"

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/base/logging.h"

namespace moesaic {
namespace {

RoutingTraceHeader HeaderOf(const ModelConfig& config, std::string_view model) {
  RoutingTraceHeader header;
  header.model = model;
  header.phase = "mixed";
  header.num_layers = static_cast<int32_t>(config.num_sparse_layers());
  const auto first = std::find_if(config.layers.begin(), config.layers.end(),
                                  [](const LayerSpec& layer) { return layer.sparse(); });
  header.first_layer = static_cast<int32_t>(first - config.layers.begin());
  header.num_experts = static_cast<int32_t>(config.num_experts());
  header.top_k = static_cast<int32_t>(config.top_k());
  return header;
}

}  // namespace

RoutingRecorder::RoutingRecorder(const std::filesystem::path& file, const ModelConfig& config,
                                 std::string_view model, int64_t max_step_rows)
    : writer_(std::make_unique<RoutingTraceWriter>(
          file, HeaderOf(config, model), TraceWriterOptions{.max_step_rows = max_step_rows})) {
  int32_t next = 0;
  for (const LayerSpec& layer : config.layers) {
    trace_layer_.push_back(layer.sparse() ? next++ : -1);
  }
}

void RoutingRecorder::Guard(FunctionRef<void()> write) {
  if (writer_ == nullptr) return;
  try {
    write();
  } catch (const Error& error) {
    LogError("recording the routing ends: {}", error.what());
    writer_.reset();
  }
}

void RoutingRecorder::BeginStep(int64_t rows) {
  Guard([&] { writer_->BeginStep(rows); });
}

void RoutingRecorder::Observe(const Routing& routing) {
  Guard([&] { writer_->Observe(trace_layer_[static_cast<size_t>(routing.layer)], routing); });
}

void RoutingRecorder::EndStep(std::span<const ScheduledSlice> plan, const StepRows& rows) {
  Guard([&] {
    slices_.clear();
    for (size_t i = 0; i < plan.size(); ++i) {
      const Sequence& sequence = *plan[i].sequence;
      const SequenceSlice& slice = rows.slices[i];
      const auto [it, added] = requests_.try_emplace(sequence.id);
      Recorded& recorded = it->second;
      if (added) {
        recorded = {writer_->BeginSequence(sequence.request.id, sequence.request.domain,
                                           slice.start_position),
                    slice.start_position};
      }
      const int64_t end = slice.start_position + slice.num_tokens;
      // The prompt's tokens, then those of the answer: a preempted request computes both in one.
      for (const bool prefill : {true, false}) {
        const int64_t from = std::max(recorded.next_position, slice.start_position);
        const int64_t to = prefill ? std::min(end, sequence.prompt_tokens) : end;
        if (from >= to) continue;
        const int64_t row = slice.first_row + from - slice.start_position;
        slices_.push_back({recorded.sequence, row, to - from, prefill,
                           std::span(rows.tokens)
                               .subspan(static_cast<size_t>(row), static_cast<size_t>(to - from))});
        recorded.next_position = to;
      }
    }
    writer_->EndStep(slices_);
  });
}

void RoutingRecorder::EndRequest(RequestId request) {
  if (requests_.erase(request) > 0) Guard([&] { writer_->EndSequence(); });
}

}  // namespace moesaic
