#include "serving/engine/link_meter.h"

#include <fmt/format.h>

#include <utility>

namespace moesaic {

std::span<const uint64_t> LinkMeter::Look(const EngineStep::Experts& experts) {
  before_.resize(experts.devices.size() + experts.links.size());
  since_.clear();
  const auto add = [this](uint64_t bytes) {
    const uint64_t before = std::exchange(before_[since_.size()], bytes);
    since_.push_back(bytes - before);
  };
  for (const DeviceStatus& device : experts.devices) add(device.bytes_copied);
  for (const ReaderLink& link : experts.links) add(link.bytes);
  return since_;
}

void AddLinkBytes(std::span<const uint64_t> since, std::vector<uint64_t>& sum) {
  sum.resize(since.size());
  for (size_t i = 0; i < since.size(); ++i) sum[i] += since[i];
}

std::vector<LinkBytes> NamedLinkBytes(const EngineStep::Experts& experts,
                                      std::span<const uint64_t> bytes) {
  std::vector<LinkBytes> named;
  named.reserve(bytes.size());
  const size_t devices = experts.devices.size();
  for (size_t i = 0; i < bytes.size(); ++i) {
    // Where a store lies is not its clients' affair.
    named.push_back(
        {i < devices ? experts.devices[i].name : fmt::format("store:{}", i - devices), bytes[i]});
  }
  return named;
}

}  // namespace moesaic
