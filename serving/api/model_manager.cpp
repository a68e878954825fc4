#include "serving/api/model_manager.h"

#include <cmath>

namespace moesaic {

Json StatusJson(const ModelStatus& status) {
  const bool loaded = status.state == ModelState::kResident;
  Json json = Json::object();
  json["value"] = loaded ? "loaded" : ModelStateName(status.state);
  json["state"] = loaded && status.shrunk ? "shrunk" : ModelStateName(status.state);
  if (status.bytes > 0) json["memory_bytes"] = status.bytes;
  if (status.state == ModelState::kLoading) {
    json["progress"] = std::floor(status.progress * 1000) / 1000;
  }
  if (status.state == ModelState::kFailed) {
    json["failed"] = true;
    json["reason"] = status.why_failed;
  }
  return json;
}

}  // namespace moesaic
