// Lists as settings have them: items with commas between.
#pragma once

#include <algorithm>
#include <string_view>

namespace moesaic {

// Takes the first item, and the comma behind it, off a list that is not empty.
inline std::string_view TakeItem(std::string_view& list) {
  const size_t comma = std::min(list.find(','), list.size());
  const std::string_view item = list.substr(0, comma);
  list.remove_prefix(std::min(comma + 1, list.size()));
  return item;
}

}  // namespace moesaic
