// ModelState: what a model of a server is doing.
#pragma once

#include <string_view>

namespace moesaic {

enum class ModelState {
  kUnloaded,  // a request for it loads it
  kLoading,
  kResident,
  kShrunk,  // resident, with fewer experts than it had: others need the memory more
  kFailed,  // it could not be loaded; a request to load it tries again
};

constexpr std::string_view ModelStateName(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kResident:
      return "resident";
    case ModelState::kShrunk:
      return "shrunk";
    case ModelState::kFailed:
      break;
  }
  return "failed";
}

}  // namespace moesaic
