#include "serving/api/tokenize.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

// The param of the 400 that `body` gets.
template <typename Parse>
std::string RefusedParam(Parse parse, const std::string& body) {
  try {
    parse(body, nullptr);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body;
    return error.param();
  }
  return "accepted";
}

TEST(TokenizeTest, Requests) {
  EXPECT_EQ(std::get<std::string>(ParseTokenizeRequest(R"({"prompt":""})").input), "");
  EXPECT_EQ(std::get<ChatInput>(
                ParseTokenizeRequest(R"({"messages":[{"role":"user","content":"x"}]})").input)
                .messages.size(),
            1u);
  EXPECT_EQ(RefusedParam(ParseTokenizeRequest, "{}"), "prompt");
  EXPECT_EQ(RefusedParam(ParseTokenizeRequest, R"({"prompt":["a"]})"), "prompt");
  EXPECT_EQ(ParseDetokenizeRequest(R"({"tokens":[1,2]})").tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(RefusedParam(ParseDetokenizeRequest, "{}"), "tokens");
  EXPECT_EQ(RefusedParam(ParseDetokenizeRequest, R"({"tokens":"1"})"), "tokens");
}

}  // namespace
}  // namespace moesaic
