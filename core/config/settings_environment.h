// Settings from the environment: MOESAIC_MAX_NUM_SEQS=8 sets max-num-seqs.
#pragma once

#include <string>
#include <vector>

#include "core/config/option_table.h"

namespace moesaic {

// Sets what "NAME=value" entries with the prefix MOESAIC_ say. Returns warnings: variables that are
// probably misspelt settings, and those that Kubernetes makes for a service called moesaic. Throws
// Error(kInvalidArgument).
std::vector<std::string> ApplyEnvironment(const std::vector<std::string>& environment,
                                          OptionTable& table);

}  // namespace moesaic
