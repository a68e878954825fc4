#include "core/config/placement_rule.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;
constexpr int64_t kLargestNumber = 1'000'000;
constexpr uint32_t kEveryPart = (1u << std::size(kModelParts)) - 1;
constexpr uint32_t Bit(ModelPart part) { return 1u << static_cast<int>(part); }

// Groups of parts, and the names that checkpoints and other programs have for them.
constexpr Named<uint32_t> kOtherNames[] = {{"*", kEveryPart},
                                           {"dense", kEveryPart & ~Bit(ModelPart::kExperts)},
                                           {"embed_tokens", Bit(ModelPart::kEmbedding)},
                                           {"self_attn", Bit(ModelPart::kAttention)},
                                           {"attn", Bit(ModelPart::kAttention)},
                                           {"shared_experts", Bit(ModelPart::kSharedExpert)},
                                           {"exps", Bit(ModelPart::kExperts)},
                                           {"lm_head", Bit(ModelPart::kHead)}};

constexpr Named<Residency> kResidencies[] = {
    {"pin", Residency::kPinned},    {"pinned", Residency::kPinned}, {"cache", Residency::kCached},
    {"cached", Residency::kCached}, {"host", Residency::kHostOnly}, {"cpu", Residency::kHostOnly}};

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(Trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

class RuleParser {
 public:
  RuleParser(std::string_view text, const std::string& origin) {
    rule_.text = Trimmed(text);
    rule_.origin = origin;
  }

  PlacementRule Parse() {
    const size_t equals = rule_.text.find('=');
    if (equals == std::string::npos) {
      Refuse("a rule is PATTERN=PLACE, for example layers.0-2.experts=pin");
    }
    const std::string_view text = rule_.text;
    ParsePattern(Trimmed(text.substr(0, equals)));
    for (const std::string_view place : SplitAt(text.substr(equals + 1), '@')) ParsePlace(place);
    if (rule_.residency == Residency::kHostOnly && rule_.device) {
      Refuse("what is on the host only is on no device; leave one of them out");
    }
    return std::move(rule_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    Fail(ErrorKind::kInvalidArgument, "{}: '{:.200}': {}", rule_.origin, rule_.text, why);
  }

  int64_t Number(std::string_view text) const {
    int64_t number = -1;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size() || number < 0 ||
        number > kLargestNumber) {
      Refuse(fmt::format("expected a whole number, not '{:.80}'", text));
    }
    return number;
  }

  NumberSet Numbers(std::string_view text) const {
    NumberSet set;
    for (const std::string_view part : SplitAt(text, '|')) {
      if (part == "*") return {};
      const size_t dash = part.find('-');
      const int64_t first = Number(part.substr(0, dash));
      int64_t last = first;
      if (dash != std::string_view::npos) {
        const std::string_view end = part.substr(dash + 1);
        last = end.empty() ? std::numeric_limits<int64_t>::max() : Number(end);
      }
      if (last < first) Refuse(fmt::format("'{}' ends before it begins", part));
      set.Add(first, last);
    }
    return set;
  }

  uint32_t Parts(std::string_view names) const {
    uint32_t parts = 0;
    for (const std::string_view name : SplitAt(names, '|')) {
      if (const auto* part = FindNamed(kModelParts, name)) {
        parts |= Bit(part->value);
      } else if (const auto* other = FindNamed(kOtherNames, name)) {
        parts |= other->value;
      } else {
        std::vector<std::string> known = NamesOf(kModelParts);
        known.insert(known.end(), {"dense", "*"});
        Refuse(fmt::format("there is no module '{:.80}'; give {}", name, OneOfText(known)));
      }
    }
    return parts;
  }

  void ParsePattern(std::string_view pattern) {
    std::vector<std::string_view> names = SplitAt(pattern, '.');
    if (names.size() > 1 && names.front() == "model") names.erase(names.begin());
    size_t at = 0;
    if (names.front() == "layers" || names.front() == "blk") {
      if (names.size() == 1) Refuse("say which layers: layers.0-2, layers.*");
      rule_.outside_of_layers = false;
      rule_.layers = Numbers(names[1]);
      at = 2;
    }
    rule_.parts = at < names.size() ? Parts(names[at++]) : kEveryPart;
    if (at == names.size()) return;
    if (rule_.parts != Bit(ModelPart::kExperts)) Refuse("only experts have numbers");
    rule_.experts = Numbers(names[at++]);
    if (at < names.size()) Refuse(fmt::format("'{:.80}' is more than an expert", names[at]));
  }

  template <typename T>
  void Once(std::optional<T>& value, T given) const {
    if (value) Refuse("a rule says one residency, one device and one NUMA node");
    value = given;
  }

  void ParsePlace(std::string_view place) {
    const std::string lower = LowerCase(place);
    if (const auto* residency = FindNamed(kResidencies, lower)) {
      Once(rule_.residency, residency->value);
      return;
    }
    if (lower == "devices") {
      Once<int>(rule_.device, PlacementRule::kAllDevices);
      return;
    }
    const size_t digits = std::min(lower.find_first_of(":0123456789"), lower.size());
    std::string_view number = std::string_view(lower).substr(digits);
    if (number.starts_with(':')) number.remove_prefix(1);
    const std::string what = lower.substr(0, digits);
    if (what == "numa") {
      Once(rule_.numa_node, static_cast<int>(Number(number)));
    } else if (what == "device" || what == "cuda" || what == "emulated") {
      Once(rule_.device, static_cast<int>(Number(number)));
      if (what != "device") rule_.device_kind = what;
    } else {
      Refuse(
          fmt::format("'{:.80}' is no place; give pin, cache, host, device:N, cuda:N, "
                      "emulated:N, devices or numa:N, and @ between several",
                      place));
    }
  }

  PlacementRule rule_;
};

std::string ScalarOf(const YAML::Node& node, const std::string& origin, const std::string& key) {
  if (node.IsScalar()) return node.Scalar();
  Fail(ErrorKind::kInvalidArgument, "{}: '{:.80}' is one value", origin, key);
}

// The same rule as text, so that there is one grammar.
std::string TextOfMapping(const YAML::Node& rule, const std::string& origin) {
  std::string pattern;
  std::string places;
  for (const auto& entry : rule) {
    const std::string key = ScalarOf(entry.first, origin, "a key");
    const std::string value = ScalarOf(entry.second, origin, key);
    const bool number =
        !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    if (key == "match") {
      pattern = value;
    } else if (key == "residency") {
      places += '@' + value;
    } else if (key == "device") {
      places += (number ? "@device:" : "@") + value;
    } else if (key == "numa") {
      places += "@numa:" + value;
    } else {
      Fail(ErrorKind::kInvalidArgument,
           "{}: unknown key '{:.80}'; a rule has match, residency, device and numa", origin, key);
    }
  }
  if (pattern.empty() || places.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: a rule has a match, and a residency, a device or a NUMA node", origin);
  }
  return pattern + '=' + places.substr(1);
}

}  // namespace

bool NumberSet::Has(int64_t number) const {
  return all() || std::any_of(ranges_.begin(), ranges_.end(), [number](const auto& range) {
           return number >= range.first && number <= range.second;
         });
}

PlacementRule ParsePlacementRule(std::string_view text, const std::string& origin) {
  return RuleParser(text, origin).Parse();
}

std::vector<PlacementRule> ParsePlacementFile(std::string_view yaml, const std::string& name) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    Fail(ErrorKind::kInvalidArgument, "{}:{}: not YAML: {}", name, error.mark.line + 1, error.msg);
  }
  if (root.IsMap() && root.size() == 1 && root["rules"]) root = root["rules"];
  if (!root.IsSequence()) {
    Fail(ErrorKind::kInvalidArgument, "{}: expected a list of rules, or `rules:` with one", name);
  }
  std::vector<PlacementRule> rules;
  for (const auto& entry : root) {
    const std::string origin = fmt::format("{}:{}", name, entry.Mark().line + 1);
    if (!entry.IsScalar() && !entry.IsMap()) {
      Fail(ErrorKind::kInvalidArgument, "{}: a rule is a text or a mapping", origin);
    }
    rules.push_back(
        ParsePlacementRule(entry.IsMap() ? TextOfMapping(entry, origin) : entry.Scalar(), origin));
  }
  return rules;
}

std::vector<PlacementRule> ReadPlacement(const std::string& item, const std::string& origin) {
  if (item.find('=') != std::string::npos) return {ParsePlacementRule(item, origin)};
  return ParsePlacementFile(ReadTextFile(item, kMaxFileBytes), item);
}

}  // namespace moesaic
