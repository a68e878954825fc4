// RequestExperts: which experts a request has used so far, beside the request of the collection
// that it is most like: what Engine::WithRequest gives. Plain data.
#pragma once

#include <memory>
#include <optional>

#include "tracer/expert_activation_matrix.h"
#include "tracer/request_tracer.h"

namespace moesaic {

struct RequestExperts {
  struct Nearest {
    int entry = 0;          // its number in the collection
    int entries = 0;        // that there are
    double similarity = 0;  // cosine of the two matrices
    ExpertActivationMatrix counts;
  };

  std::shared_ptr<const RequestTrace> trace;  // not null; shared with who else asks
  // None: the predictor keeps no collection, nothing of it is like the request, or nobody asked.
  std::optional<Nearest> nearest;
  bool has_collection = false;
};

}  // namespace moesaic
