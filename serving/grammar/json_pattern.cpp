#include "serving/grammar/json_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr uint32_t kLastCodePoint = 0x10ffff;
constexpr std::string_view kOnlyEscaped =
    "it asks for a quote, a backslash or a control character, which a JSON string only has escaped";

struct Range {
  uint32_t first;
  uint32_t last;
};
// Of code points; ascending and apart once it is Normal.
using Set = std::vector<Range>;

Set Normal(Set set) {
  std::sort(set.begin(), set.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  Set out;
  for (const Range& range : set) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

Set Complement(const Set& set) {
  Set out;
  uint32_t next = 0;
  for (const Range& range : Normal(set)) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

// What a JSON string has only escaped, and surrogates, which are no characters.
Set WithoutEscaped(const Set& set) {
  Set out = Complement(set);
  out.insert(out.end(), {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0xd800, 0xdfff}});
  return Complement(out);
}

const Set kDigits = {{'0', '9'}};
const Set kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kSpaces = {{'\t', '\r'}, {' ', ' '}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

bool IsAlphanumeric(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

std::string Spelt(uint32_t c) {
  if (IsAlphanumeric(c)) return std::string(1, static_cast<char>(c));
  return c < 0x80 ? fmt::format("\\x{:02x}", c) : fmt::format("\\u{{{:x}}}", c);
}

std::string Class(const Set& set) {
  std::string out = "[";
  for (const Range& range : set) {
    out += Spelt(range.first);
    if (range.last > range.first) out += "-" + Spelt(range.last);
  }
  return out + "]";
}

class Writer {
 public:
  explicit Writer(std::string_view pattern) : text_(pattern) {}

  std::string Write() {
    if (text_.starts_with("(?i)")) {
      out_ = "(?i)";
      at_ = 4;
    }
    while (at_ < text_.size()) Step();
    if (open_groups_ > 0) Refuse("a bracket is not closed");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Fail(ErrorKind::kInvalidArgument, "{} (before byte {} of the pattern)",
         fmt::format(format, std::forward<Args>(args)...), at_);
  }

  bool Takes(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void Step() {
    const char c = text_[at_];
    switch (c) {
      case '^':
        ++at_;
        if (open_groups_ > 0 || !option_begins_) {
          Refuse("^ is supported at the beginning of an option only");
        }
        return;
      case '$':
        ++at_;
        if (open_groups_ > 0 || (at_ < text_.size() && text_[at_] != '|')) {
          Refuse("$ is supported at the end of an option only");
        }
        atom_ = false;
        return;
      case '|':
        ++at_;
        out_ += '|';
        atom_ = false;
        option_begins_ = true;
        return;
      case '(':
        option_begins_ = false;
        return Open();
      case ')':
        ++at_;
        if (open_groups_ == 0) Refuse("a bracket is closed that was not opened");
        --open_groups_;
        atom_ = true;
        out_ += ')';
        return;
      case '*':
      case '+':
      case '?':
      case '{':
        return Repeat(c);
      case ']':
        Refuse("] without a [ before it; write \\]");
      default:
        option_begins_ = false;
        return AddSet(Atom());
    }
  }

  void Open() {
    ++at_;
    if (Takes('?') && !Takes(':')) {
      Takes('P');
      if (!Takes('<')) Refuse("this kind of group is not supported");
      const size_t begin = at_;
      while (at_ < text_.size() &&
             (IsAlphanumeric(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
        ++at_;
      }
      if (at_ == begin || !Takes('>')) Refuse("this kind of group is not supported");
    }
    ++open_groups_;
    out_ += '(';
    atom_ = false;
  }

  void Repeat(char c) {
    if (!atom_) Refuse("there is nothing to repeat before {}", c);
    ++at_;
    if (c != '{') {
      out_ += c;
    } else {
      const size_t close = text_.find('}', at_);
      const std::string_view counts =
          text_.substr(at_, close == std::string_view::npos ? 0 : close - at_);
      const size_t comma = counts.find(',');
      const auto is_count = [](std::string_view text) {
        return text.size() <= 6 && text.find_first_not_of("0123456789") == std::string_view::npos;
      };
      const std::string_view least = counts.substr(0, comma);
      const bool two = comma != std::string_view::npos;
      if (least.empty() || !is_count(least) || (two && !is_count(counts.substr(comma + 1)))) {
        Refuse("this is no repetition ({{2}}, {{2,}} or {{2,5}}); for a brace write \\{{");
      }
      out_ += fmt::format("{{{}}}", counts);
      at_ = close + 1;
    }
    Takes('?');  // in which order a match is looked for is nothing to what matches
    atom_ = false;
  }

  void AddSet(const Set& asked) {
    const Set set = WithoutEscaped(asked);
    if (set.empty()) Refuse("{}", kOnlyEscaped);
    atom_ = true;
    const bool plain = set.size() == 1 && set[0].first == set[0].last;
    out_ += plain && IsAlphanumeric(set[0].first) ? Spelt(set[0].first) : Class(set);
  }

  Set Atom() {
    if (Takes('.')) return Complement(kLineEnds);
    if (Takes('[')) return ClassSet();
    if (Takes('\\')) return Escape(false);
    return Single(CodePoint());
  }

  static Set Single(uint32_t c) { return {{c, c}}; }

  uint32_t CodePoint() {
    const auto lead = static_cast<unsigned char>(text_[at_]);
    const size_t bytes = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || at_ + bytes > text_.size()) {
      Refuse("this is not UTF-8");
    }
    uint32_t c = bytes == 1 ? lead : lead & (0x7fU >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<unsigned char>(text_[at_ + i]);
      if ((next & 0xc0U) != 0x80U) Refuse("this is not UTF-8");
      c = c << 6U | (next & 0x3fU);
    }
    if (c > kLastCodePoint) Refuse("this is not UTF-8");
    at_ += bytes;
    return c;
  }

  // Behind "[".
  Set ClassSet() {
    const bool negated = Takes('^');
    Set set;
    if (at_ < text_.size() && text_[at_] == ']') Refuse("a class of no characters");
    while (!Takes(']')) {
      if (at_ >= text_.size()) Refuse("a class is not closed");
      const Set unit = Member();
      const bool one = unit.size() == 1 && unit[0].first == unit[0].last;
      const bool range =
          one && at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      if (!range) {
        set.insert(set.end(), unit.begin(), unit.end());
        continue;
      }
      ++at_;
      const Set end = Member();
      if (end.size() != 1 || end[0].first != end[0].last || end[0].first < unit[0].first) {
        Refuse("a range of characters ends before it begins");
      }
      set.push_back({unit[0].first, end[0].first});
    }
    return negated ? Complement(set) : Normal(std::move(set));
  }

  Set Member() { return Takes('\\') ? Escape(true) : Single(CodePoint()); }

  uint32_t Hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const auto lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + static_cast<uint32_t>(lower - 'a') + 10;
      } else {
        Refuse("a hexadecimal digit is missing");
      }
    }
    return value;
  }

  // Behind the backslash.
  Set Escape(bool in_class) {
    if (at_ >= text_.size()) Refuse("it ends with a backslash");
    const uint32_t c = CodePoint();
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWords;
      case 'W':
        return Complement(kWords);
      case 's':
        return kSpaces;
      case 'S':
        return Complement(kSpaces);
      case 'n':
        return Single('\n');
      case 'r':
        return Single('\r');
      case 't':
        return Single('\t');
      case 'f':
        return Single('\f');
      case 'v':
        return Single('\v');
      case '0':
        return Single(0);
      case 'b':
        if (in_class) return Single('\b');
        break;
      case 'x':
        return Single(Hex(2));
      case 'u': {
        if (!Takes('{')) return Single(Hex(4));
        const size_t close = text_.find('}', at_);
        if (close == std::string_view::npos || close == at_ || close > at_ + 6) {
          Refuse("\\u{{...}} has one to six hexadecimal digits");
        }
        const uint32_t value = Hex(close - at_);
        ++at_;
        if (value > kLastCodePoint) Refuse("this is beyond Unicode");
        return Single(value);
      }
      default:
        if (!IsAlphanumeric(c)) return Single(c);
    }
    Refuse("\\{} is not supported", static_cast<char>(c));
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string out_;
  int open_groups_ = 0;
  bool atom_ = false;  // there is something that a repetition would repeat
  bool option_begins_ = true;
};

}  // namespace

std::string JsonStringPattern(std::string_view pattern) { return Writer(pattern).Write(); }

std::string JsonStringOfLength(int64_t least, int64_t most) {
  const std::string any = Class(WithoutEscaped({{0, kLastCodePoint}}));
  return most < 0 ? fmt::format("{}{{{},}}", any, least)
                  : fmt::format("{}{{{},{}}}", any, least, most);
}

}  // namespace moesaic
