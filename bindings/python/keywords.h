// Options of a command as keywords of Python: the names of its flags, with _ for -.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/config/option_table.h"

namespace moesaic::python {

// A list that is given as several pairs of one name grows.
using Keywords = std::vector<std::pair<std::string, std::string>>;

// "expert_memory" for "expert-memory".
std::string KeywordOf(std::string name);

// Sets what was given. Throws Error(kInvalidArgument) for an unknown name, with the nearest one, or
// else where they are listed (`moesaic COMMAND --help`).
void SetKeywords(const Keywords& keywords, const std::string& command, OptionTable& table);

}  // namespace moesaic::python
