#include "serving/text/byte_level.h"

#include <array>
#include <cstdint>

#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr bool IsPrintableByte(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable bytes stand for themselves (as Latin-1); the 68 others follow from U+0100 on.
constexpr std::array<char16_t, 256> MakeAlphabet() {
  std::array<char16_t, 256> alphabet{};
  char16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[static_cast<size_t>(byte)] =
        IsPrintableByte(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return alphabet;
}
constexpr std::array<char16_t, 256> kAlphabet = MakeAlphabet();

constexpr std::array<int16_t, 324> MakeReverse() {
  std::array<int16_t, 324> reverse{};
  for (int16_t& byte : reverse) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) reverse[kAlphabet[static_cast<size_t>(byte)]] = byte;
  return reverse;
}
constexpr std::array<int16_t, 324> kReverse = MakeReverse();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string& out) {
  for (const char c : bytes) AppendUtf8(kAlphabet[static_cast<unsigned char>(c)], out);
}

std::optional<std::string> DecodeByteLevel(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  size_t pos = 0;
  while (pos < token.size()) {
    const CodePoint c = DecodeAt(token, pos);  // a GGUF file may hold any bytes
    if (c.value >= kReverse.size() || kReverse[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kReverse[c.value]));
    pos += c.length_bytes;
  }
  return bytes;
}

}  // namespace moesaic
