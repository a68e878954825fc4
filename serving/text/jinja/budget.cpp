#include "serving/text/jinja/budget.h"

#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

void Budget::FailSteps() const {
  Raise("the template took more than {} steps; does it loop without end?", limits_.steps);
}

void Budget::FailBytes(uint64_t bytes) const {
  Raise("the template created more than {} bytes of values ({} more were asked for)",
        limits_.allocated_bytes, bytes);
}

}  // namespace moesaic::jinja
