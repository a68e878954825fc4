// A trace with all that a trace can have, and what makes two of them equal.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tracer/routing_trace.h"

namespace moesaic {

inline RoutingTraceHeader Header(int experts = 37) {
  RoutingTraceHeader header;
  header.model = "m \"quoted\"";
  header.phase = "decode";
  header.num_layers = 3;
  header.first_layer = 1;
  header.num_experts = experts;
  header.top_k = 2;
  header.weight_scale = 65536;
  header.extra = R"({"source":"test"})";
  return header;
}

inline RoutingTrace RandomTrace(int sequences, bool texts) {
  std::mt19937 random(3);
  RoutingTrace trace;
  trace.header = Header();
  for (int s = 0; s < sequences; ++s) {
    TraceSequence sequence;
    sequence.id = "id" + std::to_string(s);
    sequence.domain = s % 2 == 0 ? "even" : "";
    sequence.first_pos = s == 0 ? -1 : 100 + s;
    if (s == 1) sequence.extra = "{\"finished\":true,\"prompt\":\"a\\tb\u00e9\"}";
    const size_t tokens = random() % 300;
    for (size_t i = 0; i < tokens * 6; ++i) {
      sequence.experts.push_back(static_cast<uint16_t>(random() % 37));
      sequence.weights.push_back(static_cast<float>(random() % 65537) / 65536.0f);
    }
    for (size_t t = 0; t < tokens; ++t) {
      sequence.token_ids.push_back(
          texts ? trace.token_texts.Intern(std::string("t\u00fc") + std::to_string(random() % 50))
                : static_cast<int32_t>(random() % 200000));
    }
    trace.sequences.push_back(std::move(sequence));
  }
  return trace;
}

inline void ExpectEqual(const RoutingTrace& a, const RoutingTrace& b) {
  EXPECT_EQ(ShapeDifference(a.header, b.header), "");
  EXPECT_EQ(a.header.model, b.header.model);
  EXPECT_EQ(a.header.weight_scale, b.header.weight_scale);
  EXPECT_EQ(a.header.extra, b.header.extra);
  EXPECT_EQ(a.token_texts.texts(), b.token_texts.texts());
  ASSERT_EQ(a.sequences.size(), b.sequences.size());
  for (size_t i = 0; i < a.sequences.size(); ++i) {
    const TraceSequence& x = a.sequences[i];
    const TraceSequence& y = b.sequences[i];
    EXPECT_EQ(x.id, y.id);
    EXPECT_EQ(x.domain, y.domain);
    EXPECT_EQ(x.experts, y.experts);
    EXPECT_EQ(x.weights, y.weights);
    EXPECT_EQ(x.token_ids, y.token_ids);
    EXPECT_EQ(x.first_pos, y.first_pos);
    EXPECT_EQ(x.prefill_tokens, y.prefill_tokens);
    EXPECT_EQ(x.extra, y.extra);
  }
}

}  // namespace moesaic
