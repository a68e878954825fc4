#include "core/device/stream_errors.h"

#include <algorithm>
#include <utility>

namespace moesaic {

const Error* FirstError(const ErrorCausesPtr& causes) {
  if (causes == nullptr) return nullptr;
  for (const std::shared_ptr<ErrorCause>& cause : *causes) {
    if (const Error* error = cause->error()) return error;
  }
  return nullptr;
}

// A copy, because others keep the old list; what went well is of no interest any more.
std::shared_ptr<ErrorCauses> StreamErrors::Unfinished() const {
  auto result = std::make_shared<ErrorCauses>();
  if (causes_ == nullptr) return result;
  for (const std::shared_ptr<ErrorCause>& cause : *causes_) {
    if (!cause->good()) result->push_back(cause);
  }
  return result;
}

std::shared_ptr<ErrorCause> StreamErrors::AddPending() {
  auto cause = std::make_shared<ErrorCause>();
  const auto causes = Unfinished();
  causes->push_back(cause);
  causes_ = causes;
  return cause;
}

void StreamErrors::Add(Error error) { AddPending()->Fail(std::move(error)); }

void StreamErrors::Add(const ErrorCausesPtr& others) {
  if (others == nullptr) return;
  const auto causes = Unfinished();
  for (const std::shared_ptr<ErrorCause>& cause : *others) {
    if (cause->good() || std::find(causes->begin(), causes->end(), cause) != causes->end()) {
      continue;
    }
    causes->push_back(cause);
  }
  causes_ = causes;
}

}  // namespace moesaic
