#include "tracer/trace_ops.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace moesaic {
namespace {

RoutingTrace Mixed() {
  RoutingTrace trace;
  trace.header.phase = "mixed";
  trace.header.num_layers = 1;
  trace.header.first_layer = 2;
  trace.header.num_experts = 4;
  trace.header.top_k = 2;
  TraceSequence a;
  a.id = "a";
  a.first_pos = 10;
  a.prefill_tokens = 2;
  a.experts = {0, 1, 0, 2, 0, 3};
  a.token_ids = {7, 8, 9};
  TraceSequence b;
  b.id = "b";
  b.prefill_tokens = 1;
  b.experts = {2, 3};
  trace.sequences = {a, b};
  return trace;
}

TEST(TraceOpsTest, SelectsAPhase) {
  const RoutingTrace decode = SelectPhase(Mixed(), TracePhase::kDecode);
  EXPECT_EQ(decode.header.phase, "decode");
  ASSERT_EQ(decode.sequences.size(), 1u);
  EXPECT_EQ(decode.sequences[0].experts, (std::vector<uint16_t>{0, 3}));
  EXPECT_EQ(decode.sequences[0].token_ids, (std::vector<int32_t>{9}));
  EXPECT_EQ(decode.sequences[0].first_pos, 12);
  EXPECT_EQ(decode.sequences[0].prefill_tokens, 0);
  const RoutingTrace prefill = SelectPhase(Mixed(), TracePhase::kPrefill);
  ASSERT_EQ(prefill.sequences.size(), 2u);
  EXPECT_EQ(prefill.sequences[0].experts, (std::vector<uint16_t>{0, 1, 0, 2}));
  EXPECT_EQ(SelectPhase(Mixed(), TracePhase::kAll).header.phase, "mixed");
  EXPECT_TRUE(SelectPhase(decode, TracePhase::kPrefill).sequences.empty());
  EXPECT_EQ(SelectPhase(decode, TracePhase::kDecode).sequences.size(), 1u);
}

TEST(TraceOpsTest, JoinsTracesOfOneShape) {
  RoutingTrace joined = Mixed();
  AppendTrace(Mixed(), "second", joined);
  EXPECT_EQ(joined.sequences.size(), 4u);
  RoutingTrace other = Mixed();
  other.header.num_experts = 5;
  EXPECT_THROW(AppendTrace(other, "other", joined), Error);
  RoutingTrace texts = Mixed();
  texts.sequences[0].token_ids.assign(3, texts.token_texts.Intern("x"));
  try {
    AppendTrace(texts, "texts", joined);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("texts: numbers its tokens"), std::string::npos);
  }
}

TEST(TraceOpsTest, TextsKeepTheirMeaningWhenNumbersCollide) {
  RoutingTrace a = Mixed();
  const int32_t number = a.token_texts.Intern("x");
  a.sequences[0].token_ids.assign(3, number);
  RoutingTrace b = Mixed();
  ASSERT_TRUE(b.token_texts.Restore(number, "y"));  // as if the hashes of x and y were equal
  b.sequences[0].token_ids.assign(3, number);
  AppendTrace(b, "b", a);
  ASSERT_EQ(a.sequences.size(), 4u);
  EXPECT_EQ(a.token_texts.texts().at(a.sequences[0].token_ids[0]), "x");
  EXPECT_EQ(a.token_texts.texts().at(a.sequences[2].token_ids[0]), "y");
}

TEST(TraceOpsTest, SumsUpToEams) {
  const RoutingTrace trace = Mixed();
  const std::vector<ExpertActivationMatrix> eams = RequestEams(trace);
  ASSERT_EQ(eams.size(), 2u);
  EXPECT_EQ(eams[0].num_layers(), 3);
  EXPECT_EQ(eams[0].count(2, 0), 3u);
  EXPECT_EQ(eams[0].row_sum(0), 0u);
  EXPECT_EQ(eams[1].count(2, 3), 1u);
}

TEST(TraceOpsTest, MeasuresReuse) {
  const TraceReuse reuse = MeasureReuse(Mixed());
  // a: two tokens follow another one, each with expert 0 of two again.
  EXPECT_DOUBLE_EQ(reuse.from_last_token, 0.5);
  EXPECT_DOUBLE_EQ(reuse.per_sequence, (4 + 2) / 8.0);
  // The busiest expert (a quarter of four): 3 of 6 uses of a, 1 of 2 of b; 3 of 8 of all.
  EXPECT_DOUBLE_EQ(reuse.sequence_top_quarter, 4 / 8.0);
  EXPECT_DOUBLE_EQ(reuse.trace_top_quarter, 3 / 8.0);
  EXPECT_DOUBLE_EQ(reuse.trace_top_half, 5 / 8.0);
  EXPECT_DOUBLE_EQ(MeasureReuse(RoutingTrace()).per_sequence, 0);
}

}  // namespace
}  // namespace moesaic
