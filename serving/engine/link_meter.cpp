#include "serving/engine/link_meter.h"

#include <fmt/format.h>

#include <utility>

namespace moesaic {

std::span<const LinkBytes> LinkMeter::Look(const EngineStep::Experts& experts) {
  const size_t count = experts.devices.size() + experts.links.size();
  before_.resize(count);
  since_.resize(count);
  size_t at = 0;
  const auto add = [&](std::string name, uint64_t bytes) {
    const uint64_t before = std::exchange(before_[at], bytes);
    since_[at++] = {std::move(name), bytes - before};
  };
  for (const DeviceStatus& device : experts.devices) add(device.name, device.bytes_copied);
  // Where a store lies is not its clients' affair.
  for (size_t i = 0; i < experts.links.size(); ++i) {
    add(fmt::format("store:{}", i), experts.links[i].bytes);
  }
  return since_;
}

void AddLinkBytes(std::span<const LinkBytes> since, std::vector<LinkBytes>& sum) {
  if (sum.size() < since.size()) sum.assign(since.size(), {});
  for (size_t i = 0; i < since.size(); ++i) {
    sum[i].name = since[i].name;
    sum[i].bytes += since[i].bytes;
  }
}

}  // namespace moesaic
