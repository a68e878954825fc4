#include "serving/http/multipart.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=X";

std::string Why(std::string_view body, std::string_view type = kType) {
  try {
    ParseMultipart(body, type);
  } catch (const ApiError& error) {
    return fmt::format("{} {}", error.status(), error.what());
  }
  return "";
}

TEST(MultipartTest, PartsOfAForm) {
  const std::string body =
      "--X\r\n"
      "Content-Disposition: form-data; name=\"purpose\"\r\n"
      "\r\n"
      "batch\r\n"
      "--X \r\n"
      "Content-Type: application/jsonl\r\n"
      "content-disposition: form-data; name=file; filename=\"a \\\"b\\\".jsonl\"\r\n"
      "\r\n"
      "{\"a\": 1}\r\n--Y\r\n{}\n\r\n"
      "--X--\r\n";
  const auto parts = ParseMultipart(body, "Multipart/Form-Data; charset=utf-8; Boundary=\"X\"");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "purpose");
  EXPECT_EQ(parts[0].filename, "");
  EXPECT_EQ(parts[0].content, "batch");
  EXPECT_EQ(parts[1].name, "file");
  EXPECT_EQ(parts[1].filename, "a \"b\".jsonl");
  EXPECT_EQ(parts[1].content.size(), 8u + 2 + 3 + 2 + 3);
}

TEST(MultipartTest, NothingInThem) {
  EXPECT_TRUE(ParseMultipart("--X--", kType).empty());
  const auto parts = ParseMultipart(
      "preamble\r\n--X\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n\r\n--X--epilogue",
      kType);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].content, "");
}

TEST(MultipartTest, WhatIsNoForm) {
  EXPECT_EQ(Why("{}", "application/json").substr(0, 4), "415 ");
  EXPECT_EQ(Why("{}", "multipart/form-datax; boundary=X").substr(0, 4), "415 ");
  EXPECT_NE(Why("--X--", "multipart/form-data").find("no boundary"), std::string::npos);
  EXPECT_NE(Why("--X--", "multipart/form-data; boundary=").find("no boundary"), std::string::npos);
  EXPECT_NE(
      Why("--X--", "multipart/form-data; boundary=" + std::string(71, 'a')).find("at most 70"),
      std::string::npos);
  EXPECT_NE(Why("").find("boundary is not there"), std::string::npos);
  EXPECT_NE(Why("--Y\r\n").find("boundary is not there"), std::string::npos);
  EXPECT_NE(Why("--X").find("not followed by a new line"), std::string::npos);
  EXPECT_NE(Why("--Xy\r\n").find("not followed by a new line"), std::string::npos);
  EXPECT_NE(Why("--X\r\nContent-Disposition: form-data; name=a\r\n").find("do not end"),
            std::string::npos);
  EXPECT_NE(Why("--X\r\n\r\nabc\r\n--X--").find("no header"), std::string::npos);
  EXPECT_NE(Why("--X\r\nContent-Disposition: form-data\r\n\r\n\r\n--X--").find("no header"),
            std::string::npos);
  EXPECT_NE(
      Why("--X\r\nContent-Disposition: form-data; name=\"a\r\n\r\n\r\n--X--").find("no header"),
      std::string::npos);
  EXPECT_NE(Why("--X\r\nContent-Disposition: form-data; name=a\r\n\r\nabc").find("last boundary"),
            std::string::npos);
  std::string many;
  for (int i = 0; i < 65; ++i) many += "--X\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n";
  EXPECT_NE(Why(many + "--X--").find("too many parts"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
