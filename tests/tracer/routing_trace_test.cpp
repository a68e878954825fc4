#include "tracer/routing_trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <string>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

constexpr const char* kHeader =
    R"({"model":"m","phase":"decode","n_moe_layers":2,"first_moe_layer":1,"n_experts":8,"top_k":2,"weight_scale":100})";
constexpr const char* kSequence =
    R"({"id":"a","domain":"d","experts":[[1,2,3,4],[5,6,7,0]],"weights":[[60,40,70,30],[50,50,90,10]]})";

std::string MessageOf(const std::string& header, const std::string& sequence) {
  try {
    ParseTraceSequence(sequence, ParseTraceHeader(header, "t.jsonl"), "t.jsonl", 7);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    return error.what();
  }
  return "";
}

TEST(RoutingTraceTest, ReadsHeaderAndSequence) {
  RoutingTrace trace;
  trace.header = ParseTraceHeader(kHeader, "t");
  EXPECT_EQ(trace.header.num_layers, 2);
  EXPECT_EQ(trace.header.first_layer, 1);
  const TraceSequence sequence = ParseTraceSequence(kSequence, trace.header, "t", 2);
  EXPECT_EQ(trace.tokens(sequence), 2);
  EXPECT_EQ(trace.Experts(sequence, 1, 0)[1], 6);
  EXPECT_EQ(trace.Experts(sequence, 0, 1)[0], 3);
  EXPECT_FLOAT_EQ(sequence.weights[2], 0.7f);
}

TEST(RoutingTraceTest, TokensGetNumbers) {
  const RoutingTraceHeader header = ParseTraceHeader(kHeader, "t");
  const std::string experts = R"("experts":[[1,2,3,4],[5,6,7,0],[1,2,3,4]])";
  TokenTexts texts;
  const TraceSequence a = ParseTraceSequence("{" + experts + R"(,"tokens":["the"," cat","the"]})",
                                             header, "t", 2, &texts);
  ASSERT_EQ(a.token_ids.size(), 3u);
  EXPECT_EQ(a.token_ids[0], a.token_ids[2]);
  EXPECT_NE(a.token_ids[0], a.token_ids[1]);
  EXPECT_EQ(texts.texts().at(a.token_ids[1]), " cat");
  // Another file numbers its texts alike, whatever came before.
  TokenTexts others;
  others.Intern("dog");
  EXPECT_EQ(others.Intern("the"), a.token_ids[0]);
  EXPECT_FALSE(others.Restore(a.token_ids[0], "cat"));

  const TraceSequence b = ParseTraceSequence(
      "{" + experts + R"(,"token_ids":[7,8,7],"tokens":["a","b","a"],"first_pos":12,"note":[1]})",
      header, "t", 2, &others);
  EXPECT_EQ(b.token_ids, (std::vector<int32_t>{7, 8, 7}));
  EXPECT_EQ(b.first_pos, 12);
  EXPECT_EQ(b.extra, R"({"note":[1]})");
  for (const std::string bad :
       {R"("tokens":["a"])", R"("tokens":["a","b",3])", R"("tokens":"abc")",
        R"("token_ids":[1,2,-3])", R"("token_ids":[1,2,4294967296])", R"("first_pos":-3)"}) {
    EXPECT_THROW(ParseTraceSequence("{" + experts + "," + bad + "}", header, "t", 2, &texts), Error)
        << bad;
  }
}

TEST(RoutingTraceTest, ReadsPlainAndGzippedFiles) {
  const TempDir dir;
  const auto plain = dir.path() / "t.jsonl";
  std::ofstream(plain) << kHeader << "\n" << kSequence << "\n\n" << kSequence;
  EXPECT_EQ(ReadRoutingTrace(plain).sequences.size(), 2u);
  const auto packed = dir.path() / "t.jsonl.gz";
  gzFile file = gzopen(packed.c_str(), "wb");
  gzprintf(file, "%s\n%s\n", kHeader, kSequence);
  gzclose(file);
  EXPECT_EQ(ReadRoutingTrace(packed).sequences.size(), 1u);
  // Cut in the middle: refused, not read as a shorter trace.
  std::filesystem::resize_file(packed, std::filesystem::file_size(packed) / 2);
  EXPECT_THROW(ReadRoutingTrace(packed), Error);
  EXPECT_THROW(ReadRoutingTrace(dir.path() / "absent"), Error);
}

TEST(RoutingTraceTest, MessagesNameFileLineAndField) {
  EXPECT_EQ(MessageOf(kHeader, kSequence), "");
  EXPECT_NE(MessageOf("[]", kSequence).find("t.jsonl:1"), std::string::npos);
  EXPECT_NE(
      MessageOf(R"({"n_moe_layers":0,"n_experts":8,"top_k":2})", kSequence).find("n_moe_layers"),
      std::string::npos);
  EXPECT_NE(MessageOf(R"({"n_moe_layers":2,"n_experts":8,"top_k":9})", kSequence).find("top_k"),
            std::string::npos);
  EXPECT_NE(MessageOf(kHeader, "{").find("t.jsonl:7"), std::string::npos);
  EXPECT_NE(MessageOf(kHeader, R"({"experts":[[1,2,3]]})").find("experts[0]"), std::string::npos);
  EXPECT_NE(MessageOf(kHeader, R"({"experts":[[1,2,3,8]]})").find("8"), std::string::npos);
  EXPECT_NE(MessageOf(kHeader, R"({"experts":[[1,2,3,-1]]})").find("-1"), std::string::npos);
  EXPECT_NE(MessageOf(kHeader, R"({"experts":[[1,2,3,4]],"weights":[]})").find("weights"),
            std::string::npos);
}

}  // namespace
}  // namespace moesaic
