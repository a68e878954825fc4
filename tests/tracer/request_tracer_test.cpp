#include "tracer/request_tracer.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic {
namespace {

TEST(RequestTracerTest, KeepsRequestsAndPhasesApart) {
  RequestTracer tracer(2, 4, 3);
  const TracedRequest a = tracer.Begin();
  const TracedRequest b = tracer.Begin();
  EXPECT_NE(a, b);
  EXPECT_EQ(tracer.running(), 2);

  // One batch: two prefill rows of a, one decode row of b; top-2.
  const std::vector<RoutingSlice> slices = {{a, 0, 2, true}, {b, 2, 1, false}};
  tracer.BeginIteration(slices);
  const std::vector<int32_t> first = {0, 1, 0, 3, 2, 3};
  const std::vector<float> weights(6, 0.5f);
  tracer.Observe({.layer = 0, .top_k = 2, .experts = first, .weights = weights, .slices = slices});
  const std::vector<int32_t> second = {1, 2, 1, 2, 0, 1};
  tracer.Observe({.layer = 1, .top_k = 2, .experts = second, .weights = weights, .slices = slices});

  const RequestTrace& trace = tracer.trace(a);
  EXPECT_EQ(trace.prefill.count(0, 0), 2u);
  EXPECT_EQ(trace.prefill.count(0, 3), 1u);
  EXPECT_EQ(trace.prefill.count(1, 2), 2u);
  EXPECT_EQ(trace.prefill.row_sum(1), 4u);
  EXPECT_EQ(trace.decode.total(), 0u);
  EXPECT_EQ(trace.prefill_tokens, 2);
  EXPECT_EQ(trace.iteration, trace.prefill);
  EXPECT_EQ(tracer.trace(b).decode.count(0, 2), 1u);
  EXPECT_EQ(tracer.trace(b).decode.total(), 4u);
  EXPECT_EQ(tracer.trace(b).prefill.total(), 0u);
  EXPECT_EQ(tracer.trace(b).decode_tokens, 1);

  // Only a runs in the next iteration, and decodes.
  const std::vector<RoutingSlice> next = {{a, 0, 1, false}};
  tracer.BeginIteration(next);
  EXPECT_EQ(trace.iteration.total(), 0u);
  const std::vector<int32_t> third = {3, 0};
  tracer.Observe({.layer = 0, .top_k = 2, .experts = third, .weights = weights, .slices = next});
  EXPECT_EQ(trace.iteration.total(), 2u);
  EXPECT_EQ(trace.decode.total(), 2u);
  EXPECT_EQ(trace.prefill.total(), 8u);
  EXPECT_EQ(trace.iterations, 2);
  EXPECT_EQ(tracer.trace(b).iterations, 1);
  EXPECT_EQ(tracer.trace(b).iteration.total(), 4u);  // its last one stays
}

TEST(RequestTracerTest, AnEndedRequestLeavesNothingToTheNext) {
  RequestTracer tracer(1, 2, 1);
  const TracedRequest a = tracer.Begin();
  const std::vector<RoutingSlice> slices = {{a, 0, 1, true}};
  const std::vector<int32_t> experts = {1};
  const std::vector<float> weights = {1.0f};
  tracer.BeginIteration(slices);
  tracer.Observe(
      {.layer = 0, .top_k = 1, .experts = experts, .weights = weights, .slices = slices});
  tracer.End(a);
  EXPECT_EQ(tracer.running(), 0);
  const RequestTrace& trace = tracer.trace(tracer.Begin());
  EXPECT_EQ(trace.prefill.total() + trace.decode.total() + trace.iteration.total(), 0u);
  EXPECT_EQ(trace.prefill_tokens, 0);
  EXPECT_EQ(trace.iterations, 0);
}

TEST(RequestTracerDeathTest, MisuseIsABug) {
  RequestTracer tracer(1, 2, 1);
  EXPECT_DEATH(tracer.trace(0), "");
  const TracedRequest a = tracer.Begin();
  EXPECT_DEATH(tracer.Begin(), "");
  tracer.End(a);
  EXPECT_DEATH(tracer.End(a), "");
}

}  // namespace
}  // namespace moesaic
