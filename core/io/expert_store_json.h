// store.json: the header of an expert store as text. Internal to core/io.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/expert_store.h"

namespace moesaic {

std::string FormatExpertStoreJson(const ExpertStoreDescription& store);
// Checks everything that can be checked without the data file. `name` is the file that messages
// name. Throws Error(kCorrupt). Parses untrusted input.
ExpertStoreDescription ParseExpertStoreJson(std::string_view json, std::string_view name);

// Experts in the store, and the size of its data file.
uint64_t ExpertStoreCount(const ExpertStoreHeader& header);
uint64_t ExpertStoreBytes(const ExpertStoreHeader& header);

}  // namespace moesaic
