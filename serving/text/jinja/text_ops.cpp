#include "serving/text/jinja/text_ops.h"

#include <algorithm>
#include <string>

#include "serving/text/jinja/text_search.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

bool InSet(char32_t code_point, std::string_view character,
           const std::optional<std::string_view>& set) {
  if (!set) return IsSpace(code_point);
  // A whole UTF-8 character cannot match inside another one.
  return set->find(character) != std::string_view::npos;
}

// Rewrites each character by `map`, which appends to its last argument; a bare byte stays.
template <typename Map>
MarkedText MapCharacters(const MarkedText& text, Map map) {
  MarkedText result;
  std::string piece;
  const std::string& bytes = text.bytes();
  for (size_t i = 0; i < bytes.size();) {
    const auto [code_point, length] = DecodeAt(bytes, i);
    if (code_point == kInvalidByte) {
      result.AppendSlice(text, i, i + length);
    } else {
      piece.clear();
      map(code_point, i, piece);
      result.Append(piece, text.FromInput(i));
    }
    i += length;
  }
  return result;
}

// Sigma at the end of a word has a lower case of its own.
void AppendLowerAt(const std::string& bytes, char32_t code_point, size_t offset, std::string& out) {
  constexpr char32_t kCapitalSigma = 0x3A3;
  constexpr char32_t kFinalSigma = 0x3C2;
  if (code_point == kCapitalSigma) {
    const size_t end = offset + 2;
    const bool after_cased = offset > 0 && IsCased(DecodeBefore(bytes, offset).value);
    const bool before_cased = end < bytes.size() && IsCased(DecodeAt(bytes, end).value);
    if (after_cased && !before_cased) {
      AppendUtf8(kFinalSigma, out);
      return;
    }
  }
  AppendLower(code_point, out);
}

size_t SkipSpace(const std::string& bytes, size_t at) {
  while (at < bytes.size()) {
    const auto [c, length] = DecodeAt(bytes, at);
    if (!IsSpace(c)) break;
    at += length;
  }
  return at;
}

size_t SkipWord(const std::string& bytes, size_t at) {
  while (at < bytes.size()) {
    const auto [c, length] = DecodeAt(bytes, at);
    if (IsSpace(c)) break;
    at += length;
  }
  return at;
}

}  // namespace

MarkedText Strip(const MarkedText& text, std::optional<std::string_view> characters, Side side,
                 Budget& budget) {
  const std::string& bytes = text.bytes();
  // A step in 16 characters, or one for 64 bytes of the set.
  const uint64_t every = characters && characters->size() >= 64 ? 1 : 16;
  const uint64_t steps = characters ? std::max<uint64_t>(1, characters->size() / 64) : 1;
  uint64_t looked_at = 0;
  const auto charge = [&] {
    if (++looked_at % every == 0) budget.Charge(steps);
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end) {
    charge();
    const auto [c, length] = DecodeAt(bytes, begin);
    if (!InSet(c, std::string_view(bytes).substr(begin, length), characters)) break;
    begin += length;
  }
  while (side != Side::kLeft && begin < end) {
    charge();
    const auto [c, length] = DecodeBefore(bytes, end);
    if (!InSet(c, std::string_view(bytes).substr(end - length, length), characters)) break;
    end -= length;
  }
  return text.Slice(begin, end);
}

MarkedText ToUpper(const MarkedText& text) {
  return MapCharacters(text, [](char32_t c, size_t, std::string& out) { AppendUpper(c, out); });
}

MarkedText ToLower(const MarkedText& text) {
  return MapCharacters(text, [&text](char32_t c, size_t offset, std::string& out) {
    AppendLowerAt(text.bytes(), c, offset, out);
  });
}

MarkedText SwapCase(const MarkedText& text) {
  return MapCharacters(text, [&text](char32_t c, size_t offset, std::string& out) {
    if (IsUpper(c)) {
      AppendLowerAt(text.bytes(), c, offset, out);
    } else {
      AppendUpper(c, out);
    }
  });
}

MarkedText Capitalize(const MarkedText& text) {
  return MapCharacters(text, [&text](char32_t c, size_t offset, std::string& out) {
    if (offset == 0) {
      AppendTitle(c, out);
    } else {
      AppendLowerAt(text.bytes(), c, offset, out);
    }
  });
}

MarkedText TitleMethod(const MarkedText& text) {
  bool after_cased = false;
  return MapCharacters(text, [&](char32_t c, size_t offset, std::string& out) {
    if (after_cased) {
      AppendLowerAt(text.bytes(), c, offset, out);
    } else {
      AppendTitle(c, out);
    }
    after_cased = IsCased(c);
  });
}

MarkedText TitleFilter(const MarkedText& text) {
  bool at_word = true;
  return MapCharacters(text, [&](char32_t c, size_t offset, std::string& out) {
    const bool separator = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (at_word || separator) {
      AppendUpper(c, out);
    } else {
      AppendLowerAt(text.bytes(), c, offset, out);
    }
    at_word = separator;
  });
}

MarkedText Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                   int64_t count, Budget& budget) {
  const std::string& bytes = text.bytes();
  MarkedText result;
  size_t position = 0;
  int64_t done = 0;
  const auto insert = [&] {
    budget.ChargeBytes(to.memory_bytes());
    result.Append(to);
    ++done;
  };
  if (from.empty()) {  // before every character and at the end
    while (count < 0 || done < count) {
      insert();
      if (position == bytes.size()) break;
      const size_t length = DecodeAt(bytes, position).length_bytes;
      result.AppendSlice(text, position, position + length);
      position += length;
    }
  } else {
    while (count < 0 || done < count) {
      const size_t found = FindText(bytes, from.bytes(), position, budget);
      if (found == std::string::npos) break;
      result.AppendSlice(text, position, found);
      insert();
      position = found + from.size_bytes();
    }
  }
  result.AppendSlice(text, position, bytes.size());
  budget.ChargeBytes(bytes.size());
  return result;
}

std::vector<MarkedText> Split(const MarkedText& text, std::optional<std::string_view> separator,
                              int64_t max_splits, Budget& budget) {
  const std::string& bytes = text.bytes();
  std::vector<MarkedText> pieces;
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits;
  };
  if (separator) {
    size_t begin = 0;
    while (may_split()) {
      const size_t found = FindText(bytes, *separator, begin, budget);
      if (found == std::string::npos) break;
      pieces.push_back(text.Slice(begin, found));
      begin = found + separator->size();
    }
    pieces.push_back(text.Slice(begin, bytes.size()));
    return pieces;
  }
  for (size_t begin = SkipSpace(bytes, 0); begin < bytes.size();) {
    if (!may_split()) {
      pieces.push_back(text.Slice(begin, bytes.size()));
      break;
    }
    const size_t end = SkipWord(bytes, begin);
    pieces.push_back(text.Slice(begin, end));
    begin = SkipSpace(bytes, end);
  }
  return pieces;
}

std::vector<MarkedText> SplitFromRight(const MarkedText& text,
                                       std::optional<std::string_view> separator,
                                       int64_t max_splits, Budget& budget) {
  if (max_splits < 0) {
    // Only overlapping separators ("aaa" by "aa") tell the directions apart.
    if (!separator) return Split(text, separator, max_splits, budget);
    max_splits = static_cast<int64_t>(text.size_bytes());
  }
  const std::string& bytes = text.bytes();
  std::vector<MarkedText> pieces;  // backwards
  const auto may_split = [&] { return static_cast<int64_t>(pieces.size()) < max_splits; };
  if (separator) {
    const LastTextFinder last(*separator, budget);
    size_t end = bytes.size();
    while (may_split()) {
      const size_t found = last.Find(bytes, end);
      if (found == std::string::npos) break;
      pieces.push_back(text.Slice(found + separator->size(), end));
      end = found;
    }
    pieces.push_back(text.Slice(0, end));
  } else {
    const auto skip_back = [&bytes](size_t end, bool space) {
      while (end > 0) {
        const auto [c, length] = DecodeBefore(bytes, end);
        if (IsSpace(c) != space) break;
        end -= length;
      }
      return end;
    };
    for (size_t end = skip_back(bytes.size(), true); end > 0;) {
      const size_t begin = may_split() ? skip_back(end, false) : 0;
      const bool last = !may_split();
      pieces.push_back(text.Slice(begin, end));
      if (last) break;
      end = skip_back(begin, true);
    }
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<MarkedText> SplitLines(const MarkedText& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  std::vector<MarkedText> lines;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const auto [c, length] = DecodeAt(bytes, i);
    if (!IsLineBreak(c)) {
      i += length;
      continue;
    }
    const bool crlf = c == '\r' && i + 1 < bytes.size() && bytes[i + 1] == '\n';
    const size_t end = i + length + (crlf ? 1 : 0);
    lines.push_back(text.Slice(begin, keep_ends ? end : i));
    begin = i = end;
  }
  if (begin < bytes.size()) lines.push_back(text.Slice(begin, bytes.size()));
  return lines;
}

MarkedText EscapeHtml(const MarkedText& text) {
  return MapCharacters(text, [](char32_t c, size_t, std::string& out) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        AppendUtf8(c, out);
    }
  });
}

MarkedText Pad(const MarkedText& text, size_t width, std::string_view fill, Side side,
               Budget& budget) {
  const size_t length = CountCharacters(text.bytes());
  if (length >= width) return text;
  const size_t missing = width - length;
  budget.ChargeBytes(missing * fill.size());
  // Python's str.center puts the odd character on the left only when the width is odd.
  const size_t left = side == Side::kLeft    ? 0
                      : side == Side::kRight ? missing
                                             : missing / 2 + (missing & width & 1);
  MarkedText result;
  for (size_t i = 0; i < left; ++i) result.Append(fill, false);
  result.Append(text);
  for (size_t i = left; i < missing; ++i) result.Append(fill, false);
  return result;
}

}  // namespace moesaic::jinja
