#include "serving/text/jinja/text_search.h"

#include <cstring>

#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {
namespace {

// Worst texts cost a few cycles a byte.
constexpr size_t kBytesPerStep = 16;

}  // namespace

size_t FindText(std::string_view text, std::string_view wanted, size_t from, Budget& budget) {
  const size_t left = text.size() - from;
  if (wanted.size() > left) return std::string_view::npos;
  if (wanted.empty()) return from;
  // glibc's is linear for every input: two-way, or a table of shifts where that is bounded.
  const void* found = memmem(text.data() + from, left, wanted.data(), wanted.size());
  const size_t at = found == nullptr
                        ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  const size_t looked_at = found == nullptr ? left : at - from + wanted.size();
  budget.Charge((looked_at + wanted.size()) / kBytesPerStep);
  return at;
}

LastTextFinder::LastTextFinder(std::string_view wanted, Budget& budget)
    : wanted_(wanted), budget_(budget) {
  if (wanted_.size() < 2) return;
  if (wanted_.size() > UINT32_MAX) Raise("a text of {} bytes is searched for", wanted_.size());
  budget_.ChargeBytes(wanted_.size() * sizeof(uint32_t));
  known_.assign(wanted_.size(), 0);
  const auto from_right = [this](size_t i) { return wanted_[wanted_.size() - 1 - i]; };
  uint32_t matched = 0;
  for (size_t i = 1; i < wanted_.size(); ++i) {
    while (matched > 0 && from_right(i) != from_right(matched)) matched = known_[matched - 1];
    if (from_right(i) == from_right(matched)) ++matched;
    known_[i] = matched;
  }
}

size_t LastTextFinder::Find(std::string_view text, size_t end) const {
  if (wanted_.size() > end) return std::string_view::npos;
  if (wanted_.empty()) return end;
  if (wanted_.size() == 1) {
    const void* found = memrchr(text.data(), wanted_[0], end);
    const size_t at = found == nullptr
                          ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
    budget_.Charge((found == nullptr ? end : end - at) / kBytesPerStep);
    return at;
  }
  size_t matched = 0;
  for (size_t i = end; i > 0; --i) {
    const auto next = [&] { return wanted_[wanted_.size() - 1 - matched]; };
    while (matched > 0 && text[i - 1] != next()) matched = known_[matched - 1];
    if (text[i - 1] == next()) ++matched;
    if (matched == wanted_.size()) {
      budget_.Charge((end - i + 1) / kBytesPerStep);
      return i - 1;
    }
  }
  budget_.Charge(end / kBytesPerStep);
  return std::string_view::npos;
}

}  // namespace moesaic::jinja
