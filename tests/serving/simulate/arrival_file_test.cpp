#include "serving/simulate/arrival_file.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

TEST(ArrivalFileTest, ReadsTheAzureForm) {
  const auto arrivals = ParseArrivals(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-30 23:59:59.5000000,374,44\r\n"
      "2023-12-01 00:00:01.7500000,396,0\r\n"
      "2023-11-30 23:59:58.5000000,7,5\r\n",
      "a.csv");
  ASSERT_EQ(arrivals.size(), 3u);
  EXPECT_EQ(arrivals[0].prompt_tokens, 7);  // in the order of time
  EXPECT_EQ(arrivals[0].at_s, 0);
  EXPECT_NEAR(arrivals[1].at_s, 1, 1e-6);
  EXPECT_NEAR(arrivals[2].at_s, 3.25, 1e-6);
  EXPECT_EQ(arrivals[2].answer_tokens, 1);  // no answer is shorter
  EXPECT_EQ(arrivals[2].model, -1);
}

TEST(ArrivalFileTest, ReadsSecondsAndModels) {
  const auto arrivals = ParseArrivals(
      "note,model,answer_tokens,prompt_tokens,seconds\nx,1,16,8,10.5\n\ny,0,2,3,12", "a.csv");
  ASSERT_EQ(arrivals.size(), 2u);
  EXPECT_EQ(arrivals[0].at_s, 0);
  EXPECT_EQ(arrivals[0].model, 1);
  EXPECT_EQ(arrivals[0].prompt_tokens, 8);
  EXPECT_EQ(arrivals[0].answer_tokens, 16);
  EXPECT_EQ(arrivals[1].at_s, 1.5);
  EXPECT_EQ(arrivals[1].model, 0);
}

TEST(ArrivalFileTest, RefusesWhatIsNoTable) {
  const auto refused = [](const std::string& text) {
    try {
      ParseArrivals(text, "a.csv");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string header = "seconds,prompt_tokens,answer_tokens,model\n";
  EXPECT_NE(refused("").find("no requests"), std::string::npos);
  EXPECT_NE(refused(header).find("no requests"), std::string::npos);
  EXPECT_NE(refused("seconds,answer_tokens\n1,2\n").find("a.csv:1: the header"), std::string::npos);
  EXPECT_NE(refused(header + "1,2,3\n").find("a.csv:2: has 3 columns"), std::string::npos);
  EXPECT_NE(refused(header + "1,2,3,0\n\nx,2,3,0\n").find("a.csv:4: 'x' is no time"),
            std::string::npos);
  EXPECT_NE(refused(header + "nan,2,3,0\n").find("'nan' is no time"), std::string::npos);
  EXPECT_NE(refused(header + "1,-2,3,0\n").find("'-2' is no number of tokens"), std::string::npos);
  EXPECT_NE(refused(header + "1,2,3.5,0\n").find("'3.5' is no number of tokens"),
            std::string::npos);
  EXPECT_NE(refused(header + "1,2,3,-1\n").find("'-1' is no number of a model"), std::string::npos);
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* time : {"2023-02-30 00:00:00", "2023-02-20 24:00:00", "2023-02-20 00:60:00",
                           "2023-02-20 00:00:61", "2023-02-20", "2023-02-20 00:00:0x"}) {
    EXPECT_NE(refused(azure + time + ",1,1\n").find("is no time"), std::string::npos) << time;
  }
}

}  // namespace
}  // namespace moesaic
