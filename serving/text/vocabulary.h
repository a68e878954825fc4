// Vocabulary: token strings and their ids, both ways. Filled once, then immutable and safe from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace moesaic {

inline constexpr int32_t kNoToken = -1;
// More than any vocabulary has (the largest published ones have about 262,000 entries); a file that
// claims more would only make us allocate tables for nothing.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  void Reserve(size_t tokens) { ids_.reserve(tokens); }
  // False when the string is known already (it keeps its id).
  bool Add(std::string token, int32_t id) { return ids_.emplace(std::move(token), id).second; }
  int32_t Find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? kNoToken : found->second;
  }
  size_t size() const { return ids_.size(); }
  auto begin() const { return ids_.begin(); }
  auto end() const { return ids_.end(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace moesaic
