// One tokenizer, several threads. A program of its own, for the thread sanitizer.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "serving/text/tokenizer.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

TEST(TokenizerThreadsTest, ManyThreadsEncodeTheSame) {
  const nlohmann::json texts = TokenizerJsonData("oracle_texts.json");
  for (const char* name : {"sample", "mixtral_style", "llama_spm"}) {
    const Tokenizer& tokenizer = TestTokenizer(name);
    std::vector<std::vector<int32_t>> expected;
    for (const auto& text : texts) expected.push_back(tokenizer.Encode(text.get<std::string>()));
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (size_t n = 0; n < texts.size(); ++n) {
          const size_t i = (n * 7 + t * 100) % texts.size();
          const std::vector<int32_t> ids = tokenizer.Encode(texts[i].get<std::string>());
          wrong[t] += ids != expected[i];
          (void)tokenizer.Decode(ids);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
  }
}

}  // namespace
}  // namespace moesaic
