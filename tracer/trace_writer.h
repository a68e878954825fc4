// RoutingTraceWriter: records expert choices into a binary trace file while a model runs.
//
//   n = writer.BeginSequence(...);
//   per step: writer.BeginStep(rows); per layer: writer.Observe(index, routing);
//   writer.EndStep(...)
//
// Thread contract: one thread at a time. Nothing is allocated per step or token while steps have at
// most max_step_rows rows. A block goes to the file when it is full or a sequence ends: what a
// killed process loses is less than a block.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "tracer/routing.h"
#include "tracer/routing_trace.h"

namespace moesaic {

struct TraceWriterOptions {
  bool weights = true;
  int64_t max_step_rows = 0;      // 0: not told; room is made as needed
  size_t block_bytes = 64 << 10;  // a block is written when it has grown to this
};

// Consecutive rows of a step that continue a sequence. `tokens` may be empty: not recorded.
struct TraceStepSlice {
  int64_t sequence = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  bool prefill = false;
  std::span<const int32_t> tokens;  // [num_rows]
};

class RoutingTraceWriter {
 public:
  // Creates the file, or goes on behind the last whole block of one of the same shape. Where the
  // header has no weight_scale, weights are recorded in steps of 1/16384 below 4. Throws Error:
  // kIo; kInvalidArgument when something else lies there.
  RoutingTraceWriter(std::filesystem::path path, RoutingTraceHeader header,
                     TraceWriterOptions options);
  // Writes what is left; errors are ignored (call Close to see them).
  ~RoutingTraceWriter();
  RoutingTraceWriter(const RoutingTraceWriter&) = delete;
  RoutingTraceWriter& operator=(const RoutingTraceWriter&) = delete;

  // What fails to be written throws Error(kIo) from any of these.
  int64_t BeginSequence(std::string_view id, std::string_view domain, int64_t first_pos,
                        std::string_view extra = {});
  void EndSequence();  // of any of them: the block is written
  void TokenText(int32_t id, std::string_view text);

  void BeginStep(int64_t rows);
  // layer: of the trace, counted from 0.
  void Observe(int32_t layer, const Routing& routing);
  void EndStep(std::span<const TraceStepSlice> slices);

  // Tokens of one sequence at once. experts and weights (or empty): [tokens, layers, top_k].
  void Append(int64_t sequence, bool prefill, std::span<const uint16_t> experts,
              std::span<const float> weights, std::span<const int32_t> token_ids);

  // Writes the block that has been begun.
  void Flush();
  void Close();

  const RoutingTraceHeader& header() const { return header_; }
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  void Open();
  void FinishRecord();
  void WriteAll(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  RoutingTraceHeader header_;
  TraceWriterOptions options_;
  int fd_ = -1;
  int64_t num_sequences_ = 0;
  uint64_t written_bytes_ = 0;
  std::vector<std::byte> block_;  // its header's room first
  int64_t step_rows_ = 0;
  std::vector<uint16_t> experts_;  // [rows, layers, top_k] of the running step
  std::vector<float> weights_;     // likewise
};

}  // namespace moesaic
