// Turns that a state file keeps: what comes back, in which order, and what does not.
#include "serving/api/replay_section.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "tests/core/base/caught.h"
#include "tests/serving/api/test_tokenizer.h"
#include "tracer/state_fields.h"

namespace moesaic {
namespace {

constexpr size_t kRoom = 1 << 20;

GeneratedTurn Turn(const std::string& id, std::vector<int32_t> tokens = {3, 1, 2}) {
  GeneratedTurn turn;
  turn.prompt = PromptKeyOf("prompt of " + id);
  turn.tokens = std::move(tokens);
  turn.items = {{AnswerItem::Kind::kReasoning, "I must \xff look", "", ""},
                {AnswerItem::Kind::kCall, R"({"a": 1})", id, "weather"},
                {AnswerItem::Kind::kCall, "", "second", ""}};
  return turn;
}

void ExpectTurn(const std::shared_ptr<const GeneratedTurn>& turn, const GeneratedTurn& expected) {
  ASSERT_NE(turn, nullptr);
  EXPECT_EQ(turn->prompt, expected.prompt);
  EXPECT_EQ(turn->tokens, expected.tokens);
  ASSERT_EQ(turn->items.size(), expected.items.size());
  for (size_t i = 0; i < turn->items.size(); ++i) {
    EXPECT_EQ(turn->items[i].kind, expected.items[i].kind);
    EXPECT_EQ(turn->items[i].text, expected.items[i].text);
    EXPECT_EQ(turn->items[i].id, expected.items[i].id);
    EXPECT_EQ(turn->items[i].name, expected.items[i].name);
  }
}

class ReplaySectionTest : public ::testing::Test {
 protected:
  // What a store of so much room has of what `saved` holds.
  std::shared_ptr<ReplayStore> Restored(std::span<const std::byte> saved, size_t room = kRoom) {
    auto store = std::make_shared<ReplayStore>(room);
    ReplaySection(store).Load(1, saved);
    return store;
  }

  const ByteTokenizer tokenizer_;
  const std::shared_ptr<ReplayStore> store_ = std::make_shared<ReplayStore>(kRoom);
};

TEST_F(ReplaySectionTest, ComesBackAsItWas) {
  store_->UseVocabulary(tokenizer_);
  for (const char* id : {"a", "b", "c"}) store_->Put(Turn(id));
  store_->Find("a");  // the one that was used last
  const std::vector<std::byte> saved = ReplaySection(store_).Save();
  const auto other = Restored(saved);
  other->UseVocabulary(tokenizer_);
  EXPECT_EQ(other->bytes(), store_->bytes());
  EXPECT_EQ(ReplaySection(other).Save(), saved);
  for (const char* id : {"a", "b", "c"}) ExpectTurn(other->Find(id), Turn(id));
  EXPECT_TRUE(ReplaySection(store_).any_thread());
}

TEST_F(ReplaySectionTest, ASmallerStoreTakesTheLastOnes) {
  for (const char* id : {"a", "b", "c"}) store_->Put(Turn(id));
  const std::vector<std::byte> saved = ReplaySection(store_).Save();
  const auto smaller = Restored(saved, store_->bytes() - 1);
  EXPECT_EQ(smaller->Find("a"), nullptr);
  ExpectTurn(smaller->Find("b"), Turn("b"));
  ExpectTurn(smaller->Find("c"), Turn("c"));
}

TEST_F(ReplaySectionTest, TokensOfAnotherVocabularyLeave) {
  store_->UseVocabulary(tokenizer_);
  store_->Put(Turn("a"));
  const ByteTokenizer same;
  store_->UseVocabulary(same);
  ExpectTurn(store_->Find("a"), Turn("a"));
  const auto other = std::make_shared<ReplayStore>(kRoom);
  other->Restore({Turn("a")}, store_->vocabulary() + 1);
  other->UseVocabulary(tokenizer_);
  EXPECT_EQ(other->Find("a"), nullptr);
  EXPECT_EQ(other->bytes(), 0u);
}

// As a file may have them that somebody has made.
TEST_F(ReplaySectionTest, TokensThatThereAreNotLeave) {
  store_->UseVocabulary(tokenizer_);
  const auto other = std::make_shared<ReplayStore>(kRoom);
  other->Restore({Turn("a", {1, -1}), Turn("b"), Turn("c", {1 << 20})}, store_->vocabulary());
  other->UseVocabulary(tokenizer_);
  EXPECT_EQ(other->Find("a"), nullptr);
  ExpectTurn(other->Find("b"), Turn("b"));
  EXPECT_EQ(other->Find("c"), nullptr);
}

TEST_F(ReplaySectionTest, WhatDoesNotFitTogetherIsRefused) {
  const auto fields = [](std::vector<uint32_t> token_counts, std::vector<uint32_t> item_counts,
                         std::vector<uint8_t> kinds, std::vector<uint32_t> text_bytes) {
    StateFields made;
    made.SetInt("vocabulary", -1);
    made.SetArray<uint64_t>("prompt_hashes", std::vector<uint64_t>{7, 8});
    made.SetArray<uint64_t>("prompt_bytes", std::vector<uint64_t>{1, 2});
    made.SetArray<uint32_t>("token_counts", token_counts);
    made.SetArray<uint32_t>("item_counts", item_counts);
    made.SetArray<int32_t>("tokens", std::vector<int32_t>{5, 6, 7});
    made.SetArray<uint8_t>("item_kinds", kinds);
    made.SetArray<uint32_t>("text_bytes", text_bytes);
    made.SetArray<uint8_t>("texts", std::vector<uint8_t>{'x', 'y'});
    return made.Pack();
  };
  const std::vector<uint8_t> kinds = {2, 2};
  const std::vector<uint32_t> texts = {0, 1, 0, 0, 1, 0};
  const auto restored = Restored(fields({2, 1}, {1, 1}, kinds, texts));
  EXPECT_EQ(restored->Find("x")->tokens, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(restored->Find("y")->tokens, (std::vector<int32_t>{7}));
  for (const std::vector<std::byte>& wrong : {
           fields({2, 2}, {1, 1}, kinds, texts),               // more tokens than there are
           fields({1, 1}, {1, 1}, kinds, texts),               // fewer
           fields({3, 0}, {1, 1}, kinds, texts),               // a turn without
           fields({2, 4294967295u}, {1, 1}, kinds, texts),     //
           fields({2, 1}, {2, 1}, kinds, texts),               // more items
           fields({2, 1}, {1, 0}, kinds, texts),               // fewer
           fields({2, 1}, {1, 1}, {2, 3}, texts),              // of no kind
           fields({2, 1}, {1, 1}, kinds, {0, 1, 0, 0, 2, 0}),  // more text
           fields({2, 1}, {1, 1}, kinds, {0, 1, 0, 0, 0, 0}),  // less
           fields({2, 1}, {1, 1}, kinds, {0, 1, 0}),           // no sizes
           fields({2}, {1, 1}, kinds, texts),                  //
       }) {
    EXPECT_THROW(Restored(wrong), Error);
  }
  // Before an item is read that is not there.
  EXPECT_TRUE(Contains(Caught([&] {
                         Restored(fields({2, 1}, {2, 1}, kinds, texts));
                       }),
                       "the items are not as many"));
  EXPECT_THROW(ReplaySection(store_).Load(2, ReplaySection(store_).Save()), Error);
  EXPECT_THROW(Restored({}), Error);
}

// Files are read by other builds of the program, on other machines.
TEST(PromptKeyTest, IsTheSameEverywhere) {
  EXPECT_EQ(PromptKeyOf("abc").hash, 0x44bc2cf5ad770999u);  // XXH64 of "abc"
  EXPECT_EQ(PromptKeyOf("abc").bytes, 3u);
}

}  // namespace
}  // namespace moesaic
