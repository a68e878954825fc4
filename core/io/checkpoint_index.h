// The index of a sharded checkpoint: model.safetensors.index.json says which file holds which
// tensor. Internal to core/io.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace moesaic {

// Tensor name -> file name within the model directory. `name` is the file that messages name.
// Throws Error(kCorrupt), also for a file name that leaves the directory. Parses untrusted input.
std::map<std::string, std::string> ParseCheckpointIndex(std::string_view json,
                                                        std::string_view name);

// A name from a file as a message shows it: quoted, without control characters, shortened.
std::string QuotedName(std::string_view name);

}  // namespace moesaic
