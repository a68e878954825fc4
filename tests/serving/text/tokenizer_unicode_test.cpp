#include "serving/text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

namespace moesaic {
namespace {

std::string Utf8(std::u32string_view text) {
  std::string result;
  for (const char32_t c : text) AppendUtf8(c, result);
  return result;
}

TEST(UnicodeTest, CodePointsGoThereAndBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, text);
    size_t pos = 0;
    ASSERT_EQ(NextCodePoint(text, pos), c);
    ASSERT_EQ(pos, text.size());
    ASSERT_EQ(PreviousCodePointStart(text, pos), 0u);
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_FALSE(IsValidUtf8(text.substr(0, text.size() - 1)) && text.size() > 1);
  }
}

TEST(UnicodeTest, FindsInvalidBytesBehindManyGoodOnes) {
  for (size_t length = 0; length < 40; ++length) {
    const std::string good(length, 'x');
    EXPECT_TRUE(IsValidUtf8(good + "\xC3\xA9" + good));
    EXPECT_FALSE(IsValidUtf8(good + "\xC3" + good + "y"));
    EXPECT_FALSE(IsValidUtf8(good + "\xED\xA0\x80"));
    std::string replaced;
    AppendReplacingInvalid(good + "\xFFz", replaced);
    EXPECT_EQ(replaced, good + "\xEF\xBF\xBDz");
  }
}

TEST(UnicodeTest, Classes) {
  EXPECT_TRUE(IsWhitespace(0x85) && IsWhitespace(0x3000) && IsWhitespace(0x2028));
  EXPECT_FALSE(IsWhitespace(0x180E) || IsWhitespace(0x200B) || IsWhitespace(0x1C));
  EXPECT_TRUE(IsNumeric(U'½') && IsNumeric(U'Ⅷ') && IsNumeric(U'٢') && IsNumeric(U'7'));
  EXPECT_FALSE(IsNumeric(U'三') || IsNumeric(U'a'));
  EXPECT_TRUE(IsPunctuation(U'$') && IsPunctuation(U'。') && IsPunctuation(U'~'));
  EXPECT_FALSE(IsPunctuation(U'€') || IsPunctuation(U'a') || IsPunctuation(U' '));
  EXPECT_TRUE(IsMark(0x301) && IsMark(0x93F) && IsMark(0x20DD));
  EXPECT_TRUE(IsWordCharacter(U'_') && IsWordCharacter(U'é') && IsWordCharacter(0x308) &&
              IsWordCharacter(0x203F) && IsWordCharacter(0x200D) && IsWordCharacter(0x24B6));
  EXPECT_FALSE(IsWordCharacter(U'-') || IsWordCharacter(U'½') || IsWordCharacter(U' '));
}

TEST(UnicodeTest, NormalForms) {
  const std::string text = Utf8(U"e\u0301\u212B\uFB01\uAC00");
  EXPECT_EQ(NormalizeUnicode(text, NormalForm::kNfc), Utf8(U"\u00E9\u00C5\uFB01\uAC00"));
  EXPECT_EQ(NormalizeUnicode(text, NormalForm::kNfd), Utf8(U"e\u0301A\u030A\uFB01\u1100\u1161"));
  EXPECT_EQ(NormalizeUnicode(text, NormalForm::kNfkc), Utf8(U"\u00E9\u00C5fi\uAC00"));
  EXPECT_EQ(NormalizeUnicode(text, NormalForm::kNfkd), Utf8(U"e\u0301A\u030Afi\u1100\u1161"));
}

// NFC takes short cuts; the library's routine over the whole text does not.
TEST(UnicodeTest, NfcShortCutsChangeNothing) {
  const auto whole = [](const std::string& text) {
    utf8proc_uint8_t* mapped = nullptr;
    const auto length =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    std::string result(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
    std::free(mapped);
    return result;
  };
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::pair<char32_t, char32_t> kRanges[] = {
      {'a', 'z'},        {0xC0, 0x24F},    {0x300, 0x345},   {0x370, 0x3FF},   {0x900, 0x9FF},
      {0xB40, 0xBDF},    {0xCC0, 0xDDF},   {0xF40, 0xFBF},   {0x1020, 0x1040}, {0x1100, 0x1112},
      {0x1161, 0x1175},  {0x11A8, 0x11C2}, {0x1B05, 0x1B43}, {0x1E00, 0x1FFF}, {0x2126, 0x212B},
      {0x3040, 0x309F},  {0xAC00, 0xAC30}, {0xF900, 0xFA20}, {0xFB1D, 0xFB4F}, {0x110A0, 0x110BF},
      {0x1D15E, 0x1D170}};
  size_t changed = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string text;
    for (size_t n = 1 + random() % 10; n > 0; --n) {
      const auto [low, high] = kRanges[random() % std::size(kRanges)];
      AppendUtf8(low + random() % (high - low + 1), text);
    }
    const std::string expected = whole(text);
    ASSERT_EQ(NormalizeUnicode(text, NormalForm::kNfc), expected) << text;
    changed += expected != text;
  }
  EXPECT_GT(changed, 10000u);
}

TEST(UnicodeTest, LowerCase) { EXPECT_EQ(LowercaseUnicode(Utf8(U"ÀBΣİẞ")), Utf8(U"àbσi\u0307ß")); }

}  // namespace
}  // namespace moesaic
