#include "core/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>

namespace moesaic {
namespace {

// The pattern of the longer vectors: byte i is (i * 131 + 7) mod 256.
std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 131 + 7);
  return text;
}

// Expected values from the reference implementation (xxhash 0.8, xxh64).
TEST(HashTest, EqualsXxh64) {
  EXPECT_EQ(Hash64(""), 0xef46db3751d8e999u);
  EXPECT_EQ(Hash64("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(Hash64("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(Hash64(Pattern(3), 0x0u), 0xbed43740ee6332bbu);
  EXPECT_EQ(Hash64(Pattern(4), 0x0u), 0xfa212ae44b3bb23du);
  EXPECT_EQ(Hash64(Pattern(7), 0x0u), 0x2744460dd675d2c0u);
  EXPECT_EQ(Hash64(Pattern(8), 0x0u), 0x994b676b71ce94ddu);
  EXPECT_EQ(Hash64(Pattern(31), 0x0u), 0x6711d55e306b5d8fu);
  EXPECT_EQ(Hash64(Pattern(32), 0x0u), 0x7f7b8e3bc5d6e25u);
  EXPECT_EQ(Hash64(Pattern(33), 0x0u), 0x9f85eeb4e1cbe9fu);
  EXPECT_EQ(Hash64(Pattern(63), 0x0u), 0xb7c9968c066cb6a5u);
  EXPECT_EQ(Hash64(Pattern(64), 0x0u), 0x50d4159a0411632eu);
  EXPECT_EQ(Hash64(Pattern(100), 0x0u), 0x9ddada11d3dc2d8fu);
  EXPECT_EQ(Hash64(Pattern(1000), 0x0u), 0xbf0bdbcc82eb373u);
  EXPECT_EQ(Hash64(Pattern(4097), 0x0u), 0x811ab3925b884au);
  EXPECT_EQ(Hash64(Pattern(100), 0x1u), 0xe6a0d25e6e0a7f2au);
  EXPECT_EQ(Hash64(Pattern(31), 0x9e3779b1u), 0xfa1259cc8b20eb58u);
  EXPECT_EQ(Hash64(Pattern(5), 0xffffffffffffffffu), 0xcd856d2e5f2c6a31u);
}

TEST(HashTest, PiecesHaveTheHashOfTheWhole) {
  const std::string text = Pattern(5000);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  Hash64Stream stream;
  EXPECT_EQ(stream.Value(), Hash64(""));
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{32}, size_t{1000}, size_t{5000}}) {
    stream.Reset();
    for (size_t at = 0; at < bytes.size(); at += piece) {
      stream.Add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(stream.Value(), Hash64(bytes)) << piece;
  }
}

TEST(HashTest, AStreamKeepsItsSeed) {
  const std::string text = Pattern(5000);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  Hash64Stream stream(77);
  for (int round = 0; round < 2; ++round) {
    stream.Reset();
    EXPECT_EQ(stream.Value(), Hash64("", 77));
    for (size_t at = 0, piece = 0; at < bytes.size(); at += piece) {
      piece = std::min(bytes.size() - at, 1 + at);
      stream.Add(bytes.subspan(at, piece));
    }
    EXPECT_EQ(stream.Value(), Hash64(text, 77));
  }
}

TEST(HashTest, EveryByteCounts) {
  const std::string base = Pattern(100);
  for (size_t i = 0; i < base.size(); ++i) {
    std::string changed = base;
    changed[i] ^= 1;
    EXPECT_NE(Hash64(changed), Hash64(base)) << i;
  }
}

}  // namespace
}  // namespace moesaic
