#include "serving/text/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

// The White_Space property; PCRE2's own \s has U+180E as well.
constexpr std::string_view kSpaceRanges =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
// Oniguruma's word characters; PCRE2 10.42's own \w lacks marks and most connectors.
constexpr std::string_view kWordSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr int kMaxClassDepth = 32;

using NamePair = std::pair<std::string_view, std::string_view>;
// Names (lower case, without space, hyphen, underscore) that PCRE2 does not know or means
// otherwise.
constexpr std::array<NamePair, 48> kPropertyNames = {{
    {"letter", "L"},
    {"casedletter", "L&"},
    {"lc", "L&"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"alpha", "Alphabetic"},
    {"digit", "Nd"},
    {"lower", "Lowercase"},
    {"upper", "Uppercase"},
    {"punct", "P"},
    {"space", "White_Space"},
    {"xdigit", "ASCII_Hex_Digit"},
}};
constexpr std::array<std::string_view, 24> kBinaryProperties = {
    "any",         "alphabetic",        "whitespace",
    "lowercase",   "uppercase",         "cased",
    "emoji",       "emojipresentation", "emojimodifier",
    "dash",        "ideographic",       "unifiedideograph",
    "ascii",       "asciihexdigit",     "hexdigit",
    "math",        "diacritic",         "joincontrol",
    "idstart",     "idcontinue",        "xidstart",
    "xidcontinue", "regionalindicator", "extendedpictographic",
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string Run() {
    while (!AtEnd()) {
      const char c = in_[pos_];
      if (c == '\\') {
        EscapeOutsideClass();
      } else if (c == '[') {
        out_ += Class(0);
      } else if (c == '(') {
        Group();
      } else if (c == '{') {
        Interval();
      } else {
        out_.push_back(c);
        ++pos_;
      }
    }
    return std::move(out_);
  }

 private:
  // The content of a class: `simple` can stand between brackets, `parts` are whole expressions that
  // match one character each.
  struct Set {
    std::string simple;
    std::vector<std::string> parts;
  };

  [[noreturn]] void Bad(std::string_view problem) const {
    Fail(ErrorKind::kUnsupported, "{}: regular expression at byte {}: {}", where_, pos_, problem);
  }
  bool AtEnd() const { return pos_ >= in_.size(); }
  bool Next(std::string_view text) const { return in_.substr(pos_).starts_with(text); }

  void Group() {
    if (Next("(*")) Bad("'(*' is not allowed; escape the asterisk");
    if (!Next("(?")) {
      out_.push_back('(');
      ++pos_;
      return;
    }
    // Option letters: Ruby's m is PCRE2's s. Anything else after "(?" means the same in both.
    size_t end = pos_ + 2;
    while (end < in_.size() &&
           (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-')) {
      ++end;
    }
    const bool options = end > pos_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')');
    out_ += "(?";
    pos_ += 2;
    if (!options) return;
    for (; pos_ < end; ++pos_) out_.push_back(in_[pos_] == 'm' ? 's' : in_[pos_]);
  }

  // Oniguruma reads {,n} as {0,n} and a '+' after an interval as one more repetition of it.
  void Interval() {
    size_t end = pos_ + 1;
    while (end < in_.size() &&
           (std::isdigit(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == ',')) {
      ++end;
    }
    const bool interval = end > pos_ + 1 && end < in_.size() && in_[end] == '}';
    if (interval && end + 1 < in_.size() && in_[end + 1] == '+') {
      Bad("an interval followed by '+'; write it as a group with '+'");
    }
    out_.push_back('{');
    ++pos_;
    if (interval && in_[pos_] == ',') out_.push_back('0');
  }

  // \p{...} and \P{...}, `pos_` at the backslash.
  std::string Property() {
    const bool upper = in_[pos_ + 1] == 'P';
    size_t i = pos_ + 2;
    if (i >= in_.size() || in_[i] != '{') Bad("\\p without {name}");
    const size_t end = in_.find('}', i);
    if (end == std::string_view::npos) Bad("\\p{ without }");
    ++i;
    bool negated = upper;
    if (i < end && in_[i] == '^') {
      negated = !negated;
      ++i;
    }
    const std::string_view name = in_.substr(i, end - i);
    pos_ = end + 1;
    return fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', PropertyName(name));
  }

  std::string PropertyName(std::string_view name) const {
    std::string key;
    for (const char c : name) {
      if (c == ' ' || c == '-' || c == '_') continue;
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) Bad("a character property's name");
      key.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
    if (key.empty()) Bad("an empty character property");
    for (const auto& [from, to] : kPropertyNames) {
      if (key == from) return std::string(to);
    }
    if (key.size() <= 2 || std::find(kBinaryProperties.begin(), kBinaryProperties.end(), key) !=
                               kBinaryProperties.end()) {
      return std::string(name);
    }
    return fmt::format("sc:{}", name);  // a bare script name would mean Script_Extensions in PCRE2
  }

  // \uHHHH, `pos_` at the backslash.
  std::string UnicodeEscape() {
    if (pos_ + 6 > in_.size()) Bad("\\u needs four hexadecimal digits");
    const std::string_view digits = in_.substr(pos_ + 2, 4);
    for (const char c : digits) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
        Bad("\\u needs four hexadecimal digits");
      }
    }
    pos_ += 6;
    return fmt::format("\\x{{{}}}", digits);
  }

  void EscapeOutsideClass() {
    if (pos_ + 1 >= in_.size()) Bad("a backslash at the end");
    const char c = in_[pos_ + 1];
    switch (c) {
      case 's':
        return Replace(fmt::format("[{}]", kSpaceRanges));
      case 'S':
        return Replace(fmt::format("[^{}]", kSpaceRanges));
      case 'w':
        return Replace(fmt::format("[{}]", kWordSet));
      case 'W':
        return Replace(fmt::format("[^{}]", kWordSet));
      case 'b':
        return Replace(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordSet));
      case 'B':
        return Replace(fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordSet));
      case 'h':
        return Replace("[0-9a-fA-F]");
      case 'H':
        return Replace("[^0-9a-fA-F]");
      case 'v':
        return Replace("\\x0B");
      case 'p':
      case 'P':
        out_ += Property();
        return;
      case 'u':
        out_ += UnicodeEscape();
        return;
      case 'Q':
      case 'E':
      case 'C':
      case 'K':
        Bad("an unsupported escape");
      default:
        CopyEscape(out_);
    }
  }
  void Replace(std::string_view text) {
    out_ += text;
    pos_ += 2;
  }
  // Copies a backslash and the character behind it, all bytes of it.
  void CopyEscape(std::string& out) {
    out.push_back(in_[pos_++]);
    do {
      out.push_back(in_[pos_++]);
    } while (!AtEnd() && (static_cast<unsigned char>(in_[pos_]) & 0xC0) == 0x80);
  }

  static std::string Expression(const Set& set) {
    if (set.parts.empty()) return "[" + set.simple + "]";
    std::string result = "(?:";
    if (!set.simple.empty()) result += "[" + set.simple + "]|";
    for (size_t i = 0; i < set.parts.size(); ++i) {
      if (i > 0) result.push_back('|');
      result += set.parts[i];
    }
    return result + ")";
  }

  // A bracketed class, `pos_` at '['. Returns an expression that matches one character.
  std::string Class(int depth) {
    if (depth > kMaxClassDepth) Bad("character classes nested too deeply");
    ++pos_;
    bool negated = false;
    if (Next("^")) {
      negated = true;
      ++pos_;
    }
    std::vector<Set> operands(1);  // of &&
    bool first = true;
    while (true) {
      if (AtEnd()) Bad("'[' without ']'");
      Set& set = operands.back();
      const char c = in_[pos_];
      if (c == ']' && !first) {
        ++pos_;
        break;
      }
      if (Next("&&")) {
        pos_ += 2;
        operands.emplace_back();
      } else if (Next("[:")) {
        PosixBracket(set);
      } else if (c == '[') {
        set.parts.push_back(Class(depth + 1));
      } else if (c == '\\') {
        EscapeInClass(set);
      } else {
        if (c == ']') set.simple.push_back('\\');
        set.simple.push_back(c);
        ++pos_;
      }
      first = false;
    }
    for (const Set& set : operands) {
      if (set.simple.empty() && set.parts.empty()) Bad("an empty character class");
    }
    if (operands.size() == 1 && operands[0].parts.empty()) {
      return fmt::format("[{}{}]", negated ? "^" : "", operands[0].simple);
    }
    std::string result;
    for (size_t i = 0; i + 1 < operands.size(); ++i) {
      result += "(?=" + Expression(operands[i]) + ")";
    }
    result += Expression(operands.back());
    return negated ? "(?:(?!" + result + ")(?s:.))" : "(?:" + result + ")";
  }

  void PosixBracket(Set& set) {
    const size_t end = in_.find(":]", pos_ + 2);
    if (end == std::string_view::npos) Bad("'[:' without ':]'");
    std::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name == "alnum" || name == "word") {
      const std::string_view members = name == "word" ? kWordSet : "\\p{Alphabetic}\\p{Nd}";
      if (negated) {
        set.parts.push_back(fmt::format("[^{}]", members));
      } else {
        set.simple += members;
      }
    } else if (name == "graph" || name == "print" || name == "blank" || name == "ascii") {
      set.simple += in_.substr(pos_, end + 2 - pos_);
    } else {
      set.simple += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', PropertyName(name));
    }
    pos_ = end + 2;
  }

  void EscapeInClass(Set& set) {
    if (pos_ + 1 >= in_.size()) Bad("a backslash at the end");
    const auto simple = [&](std::string_view text) {
      set.simple += text;
      pos_ += 2;
    };
    switch (in_[pos_ + 1]) {
      case 's':
        return simple(kSpaceRanges);
      case 'S':
        return simple("\\P{White_Space}");
      case 'w':
        return simple(kWordSet);
      case 'W':
        set.parts.push_back(fmt::format("[^{}]", kWordSet));
        pos_ += 2;
        return;
      case 'h':
        return simple("0-9a-fA-F");
      case 'H':
        set.parts.emplace_back("[^0-9a-fA-F]");
        pos_ += 2;
        return;
      case 'v':
        return simple("\\x0B");
      case 'p':
      case 'P':
        set.simple += Property();
        return;
      case 'u':
        set.simple += UnicodeEscape();
        return;
      case 'Q':
      case 'E':
      case 'C':
      case 'K':
        Bad("an unsupported escape");
      default:
        CopyEscape(set.simple);
    }
  }

  std::string_view in_;
  std::string_view where_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

std::string TranslateOnigurumaToPcre2(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace moesaic
