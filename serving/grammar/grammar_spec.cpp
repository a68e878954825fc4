#include "serving/grammar/grammar_spec.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace moesaic {

std::string GrammarSpec::Key() const {
  std::string key;
  for (const std::vector<GrammarPart>& parts : alternatives) {
    fmt::format_to(std::back_inserter(key), "{}(", parts.size());
    for (const GrammarPart& part : parts) {
      // Lengths first, so that no text can look like two.
      fmt::format_to(std::back_inserter(key), "{},{},{}:{}", static_cast<int>(part.kind),
                     part.token, part.text.size(), part.text);
    }
  }
  return key;
}

size_t GrammarSpec::bytes() const {
  size_t sum = 0;
  for (const std::vector<GrammarPart>& parts : alternatives) {
    for (const GrammarPart& part : parts) sum += part.text.size();
  }
  return sum;
}

GrammarSpec SpecOf(GrammarPart part) {
  GrammarSpec spec;
  spec.alternatives.emplace_back().push_back(std::move(part));
  return spec;
}

}  // namespace moesaic
