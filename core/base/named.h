// Named<T>: a value and the name that people write for it. The list of an enum's names stands once,
// beside the enum; settings take their choices from it, messages and files their words.
#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

template <typename T>
struct Named {
  const char* name;
  T value;
};

// The name of a value, or `otherwise` when the list has none.
template <typename List, typename T>
constexpr const char* NameOf(const List& list, const T& value, const char* otherwise = "unknown") {
  for (const auto& entry : list) {
    if (entry.value == value) return entry.name;
  }
  return otherwise;
}

// Null when the list has no such name.
template <typename List>
constexpr auto FindNamed(const List& list, std::string_view name) -> decltype(std::data(list)) {
  for (const auto& entry : list) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

template <typename List>
std::vector<std::string> NamesOf(const List& list) {
  std::vector<std::string> names;
  for (const auto& entry : list) names.emplace_back(entry.name);
  return names;
}

// "fetch, host or auto", for messages.
inline std::string OneOfText(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace moesaic
