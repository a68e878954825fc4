// Json: the JSON value that is used everywhere. Members keep their order: chat templates print
// tools as the client wrote them.
#pragma once

#include <nlohmann/json.hpp>

namespace moesaic {

using Json = nlohmann::ordered_json;

}  // namespace moesaic
