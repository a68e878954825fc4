// A live view as JSON: the shape that the page and other readers rely on.

#include "serving/api/live_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moesaic {
namespace {

std::string Encode(const std::string& text) {
  return Base64({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

// RFC 4648, section 10.
TEST(LiveJsonTest, Base64) {
  EXPECT_EQ(Encode(""), "");
  EXPECT_EQ(Encode("f"), "Zg==");
  EXPECT_EQ(Encode("fo"), "Zm8=");
  EXPECT_EQ(Encode("foo"), "Zm9v");
  EXPECT_EQ(Encode("foob"), "Zm9vYg==");
  EXPECT_EQ(Encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(Encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(Encode("\xff\xfe\xfd"), "//79");
}

TEST(LiveJsonTest, ASample) {
  LiveSample sample;
  sample.number = 3;
  sample.time_us = 4'000'000'000'000;
  sample.totals.steps = 5;
  sample.totals.experts.hits = 6;
  sample.totals.experts.late_hits = 7;
  sample.totals.experts.misses = 8;
  sample.totals.experts.blocked_us = 9;
  sample.totals.recall.used[1] = 10;
  sample.totals.recall.found[1] = 4;
  sample.kv_usage = 0.25;
  sample.links.push_back({1, 2, 3, 4});
  using enum ExpertPresence;
  sample.places = {kAbsent, kResident, kArriving, kAbsent};
  sample.left = {0, 0, 1, 1};  // what is arriving again has not just left
  sample.use = {0, 1, 0.25f, 1e-9f};
  LiveRequest& request = sample.requests.emplace_back();
  request.id = 11;
  request.name = "a\xff";
  request.phase = LiveRequest::Phase::kPrefill;
  const Json json = Json::parse(DumpJson(LiveSampleJson(sample)));
  EXPECT_EQ(json["type"], "sample");
  EXPECT_EQ(json["number"], 3);
  EXPECT_EQ(json["time_us"], 4'000'000'000'000);
  EXPECT_TRUE(json["not_ready"].is_null());
  EXPECT_EQ(json["kv_usage"], 0.25);
  EXPECT_EQ(json["experts_resident"], 1);
  EXPECT_EQ(json["totals"]["steps"], 5);
  EXPECT_EQ(json["totals"]["hits"], 6);
  EXPECT_EQ(json["totals"]["late"], 7);
  EXPECT_EQ(json["totals"]["misses"], 8);
  EXPECT_EQ(json["totals"]["blocked_us"], 9);
  EXPECT_EQ(json["recall"][1], Json::parse(R"({"distance":2,"used":10,"foreseen":4})"));
  EXPECT_EQ(json["recall"].size(), 4u);
  EXPECT_EQ(json["links"][0]["on_demand_us"], 1);
  EXPECT_EQ(json["links"][0]["prefetch_packets"], 4);
  EXPECT_EQ(json["places"], Encode(std::string("\0\1\2\3", 4)));
  EXPECT_EQ(json["use"], Encode(std::string("\0\xff\x80\1", 4)));  // roots; what is used is not 0
  EXPECT_EQ(json["requests"][0]["id"], 11);
  EXPECT_EQ(json["requests"][0]["phase"], "prefill");
  EXPECT_EQ(json["requests"][0]["request_id"], "a\uFFFD");
  EXPECT_FALSE(json["requests"][0].contains("ended"));
  request.ended = "stop";
  sample.not_ready = "the disk has gone";
  sample.places.clear();
  const Json other = LiveSampleJson(sample);
  EXPECT_EQ(other["requests"][0]["ended"], "stop");
  EXPECT_EQ(other["not_ready"], "the disk has gone");
  EXPECT_EQ(other["places"], "");
}

}  // namespace
}  // namespace moesaic
