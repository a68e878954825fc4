// ThinkingLimit: how many tokens a model may think, and how its thinking is ended when they are
// used up. ThinkingBudget: counts them for one sequence, and says which token comes next then.
//
// A limit is immutable and shared by the choices of a request; a budget is its sequence's, used by
// the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct ThinkingLimit {
  int32_t max_tokens = 0;  // from the answer's beginning
  bool begun = false;      // the prompt ends within the thinking
  std::string begin;       // what thinking begins with, where it is the answer's beginning
  std::string end;         // and ends with
  // What ends it in the model's place; at least one token.
  std::vector<int32_t> end_tokens;
};

class ThinkingBudget {
 public:
  explicit ThinkingBudget(std::shared_ptr<const ThinkingLimit> limit);

  // The token that comes next whatever the model says; nullopt: the model chooses.
  std::optional<int32_t> Forced() const;
  // The sequence's next token, with its text.
  void Append(std::string_view bytes);

 private:
  enum class At { kBegin, kThinking, kEnding, kDone };

  void EndIfUsedUp();

  const std::shared_ptr<const ThinkingLimit> limit_;
  At at_ = At::kBegin;
  int64_t tokens_ = 0;
  size_t forced_ = 0;  // of end_tokens
  std::string text_;   // the beginning, or what may be the end's
};

}  // namespace moesaic
