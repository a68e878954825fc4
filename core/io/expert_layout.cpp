#include "core/io/expert_layout.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {

const ExpertSection& ExpertLayout::Section(const std::string& name) const {
  const auto it = std::find_if(sections.begin(), sections.end(),
                               [&](const ExpertSection& section) { return section.name == name; });
  CHECK(it != sections.end());
  return *it;
}

}  // namespace moesaic
