#include "serving/api/keep_alive.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace moesaic {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(KeepAliveTest, DurationsAsGoWritesThem) {
  EXPECT_EQ(ParseGoDuration("5m"), minutes(5));
  EXPECT_EQ(ParseGoDuration("1h30m"), minutes(90));
  EXPECT_EQ(ParseGoDuration("1.5s"), milliseconds(1500));
  EXPECT_EQ(ParseGoDuration("250ms"), milliseconds(250));
  EXPECT_EQ(ParseGoDuration("+2us"), microseconds(2));
  EXPECT_EQ(ParseGoDuration("7ns"), nanoseconds(7));
  EXPECT_EQ(ParseGoDuration("0"), nanoseconds(0));
  EXPECT_EQ(ParseGoDuration("0s"), nanoseconds(0));
  EXPECT_EQ(ParseGoDuration("-0s"), nanoseconds(0));
  EXPECT_EQ(ParseGoDuration("-1s"), kKeepForEver);
  EXPECT_EQ(ParseGoDuration("99999999h"), kKeepForEver);
  EXPECT_EQ(ParseGoDuration("24h"), hours(24));
  for (const char* wrong : {"", "-", "5", "m", "5x", "5m3", "1e3s", "5 m", ".s", "nans", "infs"}) {
    EXPECT_EQ(ParseGoDuration(wrong), std::nullopt) << wrong;
  }
}

std::optional<KeepAlive> Read(const char* text) {
  const Json json = Json::parse(text);
  RequestFields fields(json);
  return ReadKeepAlive(fields);
}

TEST(KeepAliveTest, OfRequests) {
  EXPECT_EQ(Read("{}"), std::nullopt);
  EXPECT_EQ(Read(R"({"keep_alive":null})"), std::nullopt);
  EXPECT_EQ(Read(R"({"keep_alive":300})"), seconds(300));
  EXPECT_EQ(Read(R"({"keep_alive":0})"), seconds(0));
  EXPECT_EQ(Read(R"({"keep_alive":-1})"), kKeepForEver);
  EXPECT_EQ(Read(R"({"keep_alive":"10m"})"), minutes(10));
  EXPECT_EQ(Read(R"({"ttl":60})"), seconds(60));
  EXPECT_EQ(Read(R"({"ttl":60,"keep_alive":"1s"})"), seconds(1));
  for (const char* wrong :
       {R"({"keep_alive":"soon"})", R"({"keep_alive":true})", R"({"ttl":-1})", R"({"ttl":"5m"})"}) {
    EXPECT_THROW(Read(wrong), ApiError) << wrong;
  }
}

}  // namespace
}  // namespace moesaic
