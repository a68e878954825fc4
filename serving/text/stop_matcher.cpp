#include "serving/text/stop_matcher.h"

#include <utility>

#include "core/base/error.h"

namespace moesaic {

StopMatcher::StopMatcher(std::span<const std::string> stops) : states_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      Fail(ErrorKind::kInvalidArgument, "stop string {} is empty; leave it out", i);
    }
    lengths_.push_back(stops[i].size());
    int32_t state = 0;
    for (const char c : stops[i]) {
      const auto [place, added] = at(state).next.try_emplace(static_cast<unsigned char>(c),
                                                             static_cast<int32_t>(states_.size()));
      const int32_t child = place->second;
      if (added) {
        State next;
        next.depth = at(state).depth + 1;
        states_.push_back(std::move(next));
      }
      state = child;
    }
    if (at(state).stop < 0) at(state).stop = static_cast<int32_t>(i);
  }
  // Breadth first: the state of the longest proper suffix that also begins a stop string.
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t state = order[i];
    for (const auto& [byte, child] : at(state).next) {
      order.push_back(child);
      if (state == 0) continue;
      int32_t fallback = at(state).fallback;
      while (fallback != 0 && !at(fallback).next.contains(byte)) fallback = at(fallback).fallback;
      const auto found = at(fallback).next.find(byte);
      at(child).fallback = found == at(fallback).next.end() ? 0 : found->second;
    }
    // Inherited after the state's own: the longest wins.
    if (at(state).stop < 0) at(state).stop = at(at(state).fallback).stop;
  }
}

bool StopMatcher::Add(std::string_view text, std::string* out) {
  if (matched_) return true;
  if (lengths_.empty()) {
    out->append(text);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    while (state_ != 0 && !at(state_).next.contains(byte)) state_ = at(state_).fallback;
    const auto found = at(state_).next.find(byte);
    state_ = found == at(state_).next.end() ? 0 : found->second;
    if (at(state_).stop < 0) continue;
    matched_ = static_cast<size_t>(at(state_).stop);
    held_.append(text.substr(0, i + 1));
    held_.resize(held_.size() - lengths_[*matched_]);
    out->append(held_);
    held_.clear();
    return true;
  }
  held_.append(text);
  const size_t ready = held_.size() - static_cast<size_t>(at(state_).depth);
  out->append(held_, 0, ready);
  held_.erase(0, ready);
  return false;
}

void StopMatcher::Finish(std::string* out) {
  out->append(held_);
  held_.clear();
  state_ = 0;
}

}  // namespace moesaic
