#include "core/perf/hardware_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/json_fields.h"
#include "core/perf/measured_json.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxProfileBytes = uint64_t{4} << 20;
constexpr double kMaxRate = 1e18;

// An element of an array of objects, with the array's name and index in messages.
template <typename F>
void ForEachObject(const nlohmann::json& object, std::string_view key, std::string_view file,
                   F&& f) {
  const JsonFields fields(object, file);
  const nlohmann::json* array = fields.Find(key);
  if (array == nullptr) return;
  if (!array->is_array()) fields.FailAt(key, "must be an array");
  for (size_t i = 0; i < array->size(); ++i) {
    if (!(*array)[i].is_object()) fields.FailAt(key, "must be an array of objects");
    f((*array)[i], JsonFields((*array)[i], file, fmt::format("{}[{}].", key, i)));
  }
}

void Require(const JsonFields& fields, std::string_view key) {
  if (fields.Absent(key)) fields.FailAt(key, "is missing");
}

// A count from 1.
int64_t RequiredCount(const JsonFields& fields, std::string_view key, int64_t most) {
  Require(fields, key);
  return fields.Int(key, 0, 1, most);
}

std::vector<std::string> ParseStrings(const JsonFields& fields, std::string_view key) {
  std::vector<std::string> result;
  const nlohmann::json* array = fields.Find(key);
  if (array == nullptr) return result;
  if (!array->is_array()) fields.FailAt(key, "must be an array of strings");
  for (const nlohmann::json& item : *array) {
    if (!item.is_string()) fields.FailAt(key, "must be an array of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

Json RatesToJson(const std::vector<ExpertRate>& rates) {
  Json array = Json::array();
  for (const ExpertRate& rate : rates) {
    array.push_back({{"weights", rate.weights},
                     {"rows", rate.rows},
                     {"alone", MeasuredToJson(rate.alone)},
                     {"loaded", MeasuredToJson(rate.loaded)}});
  }
  return array;
}

std::vector<ExpertRate> RatesFromJson(const nlohmann::json& object, std::string_view key,
                                      std::string_view file) {
  std::vector<ExpertRate> rates;
  ForEachObject(object, key, file, [&](const nlohmann::json&, const JsonFields& rate) {
    rates.push_back({rate.String("weights", ""), RequiredCount(rate, "rows", 1 << 20),
                     MeasuredFromJson(rate, "alone", 0, kMaxRate),
                     MeasuredFromJson(rate, "loaded", 0, kMaxRate)});
  });
  return rates;
}

// Identifies the machine as far as measured rates go. Memory is rounded, because kernels reserve a
// little more or less of it at each boot.
std::string HostFingerprint(const HostDescription& host) {
  return fmt::format(
      "{:016x}",
      Hash64(fmt::format("{}|{}|{}|{}|{:.2f}|{}|{}", host.cpu_model, fmt::join(host.isa_flags, " "),
                         host.logical_cpus, host.physical_cores, host.cpu_quota, host.numa_nodes,
                         (host.memory_total_bytes + (uint64_t{1} << 29)) >> 30)));
}

}  // namespace

double HardwareProfile::memory_bytes_per_s() const {
  return memory.empty() ? 0 : memory.back().read.value;
}

double DeviceProfile::copy_bytes_per_s(uint64_t packet_bytes) const {
  const CopyRate* nearest = nullptr;
  const auto factor = [&](const CopyRate& rate) {
    const auto a = static_cast<double>(rate.packet_bytes);
    const auto b = static_cast<double>(packet_bytes);
    return a > b ? a / b : b / a;
  };
  for (const CopyRate& rate : copies) {
    if (nearest == nullptr || factor(rate) < factor(*nearest)) nearest = &rate;
  }
  return nearest == nullptr ? 0 : nearest->to_device_loaded.value;
}

const DeviceProfile* HardwareProfile::DeviceNamed(std::string_view name,
                                                  std::string_view model) const {
  for (const DeviceProfile& device : devices) {
    if (device.name == name && device.model == model) return &device;
  }
  return nullptr;
}

const DiskProfile* HardwareProfile::DiskFor(const fs::path& path) const {
  const DiskProfile* best = nullptr;
  for (const DiskProfile& disk : disks) {
    const fs::path parent = disk.path;
    const auto mismatch = std::mismatch(parent.begin(), parent.end(), path.begin(), path.end());
    if (mismatch.first != parent.end()) continue;
    if (best == nullptr || disk.path.size() > best->path.size()) best = &disk;
  }
  return best;
}

HostDescription DescribeHost(const Topology& topology) {
  HostDescription host;
  host.cpu_model = topology.cpu_model;
  host.isa_flags = topology.isa_flags;
  host.logical_cpus = static_cast<int>(topology.cpus.size());
  host.physical_cores = topology.physical_cores();
  host.cpu_quota = topology.cgroup.cpu_quota.value_or(0);
  host.numa_nodes = static_cast<int>(topology.nodes.size());
  host.memory_total_bytes = topology.memory_total_bytes;
  host.fingerprint = HostFingerprint(host);
  return host;
}

std::string SerializeProfile(const HardwareProfile& profile) {
  Json root;
  root["format"] = "moesaic-hardware-profile";
  root["version"] = HardwareProfile::kVersion;
  root["created"] = profile.created;
  root["quick"] = profile.quick;
  const HostDescription& host = profile.host;
  root["host"] = {
      {"fingerprint", host.fingerprint},       {"cpu_model", host.cpu_model},
      {"isa_flags", host.isa_flags},           {"logical_cpus", host.logical_cpus},
      {"physical_cores", host.physical_cores}, {"cpu_quota", host.cpu_quota},
      {"numa_nodes", host.numa_nodes},         {"memory_total_bytes", host.memory_total_bytes}};
  root["disks"] = Json::array();
  for (const DiskProfile& disk : profile.disks) {
    Json rates = Json::array();
    for (const DiskRate& rate : disk.rates) {
      rates.push_back({{"block_bytes", rate.block_bytes},
                       {"depth", rate.depth},
                       {"read", MeasuredToJson(rate.read)},
                       {"latency", MeasuredToJson(rate.latency)}});
    }
    root["disks"].push_back({{"path", disk.path}, {"backend", disk.backend}, {"rates", rates}});
  }
  root["memory"] = Json::array();
  for (const MemoryRate& rate : profile.memory) {
    root["memory"].push_back({{"threads", rate.threads}, {"read", MeasuredToJson(rate.read)}});
  }
  root["compute"] = Json::array();
  for (const ComputeRate& rate : profile.compute) {
    root["compute"].push_back({{"instructions", rate.instructions},
                               {"threads", rate.threads},
                               {"rate", MeasuredToJson(rate.rate)}});
  }
  root["kernels"] = Json::array();
  for (const KernelChoice& choice : profile.kernels) {
    Json steps = Json::array();
    for (const KernelStep& step : choice.steps) {
      steps.push_back({{"min_rows", step.min_rows}, {"instructions", step.instructions}});
    }
    root["kernels"].push_back({{"numerics", choice.numerics},
                               {"weights", choice.weights},
                               {"steps", steps},
                               {"how", choice.how},
                               {"when", choice.when}});
  }
  root["devices"] = Json::array();
  for (const DeviceProfile& device : profile.devices) {
    Json copies = Json::array();
    for (const CopyRate& rate : device.copies) {
      copies.push_back({{"packet_bytes", rate.packet_bytes},
                        {"to_device", MeasuredToJson(rate.to_device)},
                        {"to_device_loaded", MeasuredToJson(rate.to_device_loaded)},
                        {"to_host", MeasuredToJson(rate.to_host)}});
    }
    root["devices"].push_back({{"name", device.name},
                               {"model", device.model},
                               {"copies", copies},
                               {"on_host", RatesToJson(device.on_host)},
                               {"on_device", RatesToJson(device.on_device)}});
  }
  // A path that is not UTF-8 is shown with replacement characters rather than refused.
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

HardwareProfile ParseProfile(std::string_view json, std::string_view name) {
  const nlohmann::json root = ParseJsonObject(json, name);
  const JsonFields fields(root, name);
  fields.RequireFormat("moesaic-hardware-profile", HardwareProfile::kVersion,
                       "run `moesaic profile` again");
  HardwareProfile profile;
  profile.created = fields.String("created", "");
  profile.quick = fields.Bool("quick", false);
  const JsonFields host(fields.Object("host"), name, "host.");
  profile.host.fingerprint = host.String("fingerprint", "");
  profile.host.cpu_model = host.String("cpu_model", "");
  profile.host.isa_flags = ParseStrings(host, "isa_flags");
  profile.host.logical_cpus = static_cast<int>(host.Int("logical_cpus", 0, 0, 1 << 20));
  profile.host.physical_cores = static_cast<int>(host.Int("physical_cores", 0, 0, 1 << 20));
  profile.host.cpu_quota = host.Number("cpu_quota", 0, 0, 1e6);
  profile.host.numa_nodes = static_cast<int>(host.Int("numa_nodes", 0, 0, 1 << 16));
  profile.host.memory_total_bytes =
      static_cast<uint64_t>(host.Int("memory_total_bytes", 0, 0, INT64_MAX));
  ForEachObject(root, "disks", name, [&](const nlohmann::json& object, const JsonFields& disk) {
    DiskProfile& out = profile.disks.emplace_back();
    out.path = disk.String("path", "");
    out.backend = disk.String("backend", "");
    ForEachObject(object, "rates", name, [&](const nlohmann::json&, const JsonFields& rate) {
      out.rates.push_back({static_cast<uint32_t>(RequiredCount(rate, "block_bytes", UINT32_MAX)),
                           static_cast<int>(RequiredCount(rate, "depth", 1 << 20)),
                           MeasuredFromJson(rate, "read", 0, kMaxRate),
                           MeasuredFromJson(rate, "latency", 0, kMaxRate)});
    });
  });
  ForEachObject(root, "memory", name, [&](const nlohmann::json&, const JsonFields& rate) {
    profile.memory.push_back({static_cast<int>(RequiredCount(rate, "threads", 1 << 20)),
                              MeasuredFromJson(rate, "read", 0, kMaxRate)});
  });
  ForEachObject(root, "compute", name, [&](const nlohmann::json&, const JsonFields& rate) {
    profile.compute.push_back({rate.String("instructions", ""),
                               static_cast<int>(RequiredCount(rate, "threads", 1 << 20)),
                               MeasuredFromJson(rate, "rate", 0, kMaxRate)});
  });
  ForEachObject(root, "kernels", name, [&](const nlohmann::json& object, const JsonFields& item) {
    KernelChoice& choice = profile.kernels.emplace_back();
    choice.numerics = item.String("numerics", "");
    choice.weights = item.String("weights", "");
    choice.how = item.String("how", "");
    choice.when = item.String("when", "");
    ForEachObject(object, "steps", name, [&](const nlohmann::json&, const JsonFields& step) {
      choice.steps.push_back(
          {RequiredCount(step, "min_rows", 1 << 20), step.String("instructions", "")});
    });
  });
  ForEachObject(root, "devices", name, [&](const nlohmann::json& object, const JsonFields& item) {
    DeviceProfile& device = profile.devices.emplace_back();
    device.name = item.String("name", "");
    device.model = item.String("model", "");
    ForEachObject(object, "copies", name, [&](const nlohmann::json&, const JsonFields& rate) {
      device.copies.push_back(
          {static_cast<uint32_t>(RequiredCount(rate, "packet_bytes", UINT32_MAX)),
           MeasuredFromJson(rate, "to_device", 0, kMaxRate),
           MeasuredFromJson(rate, "to_device_loaded", 0, kMaxRate),
           MeasuredFromJson(rate, "to_host", 0, kMaxRate)});
    });
    device.on_host = RatesFromJson(object, "on_host", name);
    device.on_device = RatesFromJson(object, "on_device", name);
  });
  return profile;
}

void SaveProfile(const HardwareProfile& profile, const fs::path& file) {
  SaveTextFile(file, SerializeProfile(profile));
}

fs::path DefaultProfilePath(std::string_view xdg_cache_home, std::string_view home) {
  // The XDG specification ignores a relative path.
  if (!xdg_cache_home.empty() && xdg_cache_home.front() == '/') {
    return fs::path(xdg_cache_home) / "moesaic" / "profile.json";
  }
  if (!home.empty()) return fs::path(home) / ".cache" / "moesaic" / "profile.json";
  return fs::temp_directory_path() / "moesaic" / "profile.json";
}

std::optional<HardwareProfile> LoadProfileFor(const HostDescription& host, const fs::path& file,
                                              std::string* why) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    *why = fmt::format("{} does not exist", file.string());
    return std::nullopt;
  }
  try {
    HardwareProfile profile = ParseProfile(ReadTextFile(file, kMaxProfileBytes), file.string());
    if (profile.host.fingerprint == host.fingerprint) return profile;
    *why = fmt::format("{} was measured on another machine ({})", file.string(),
                       profile.host.cpu_model);
  } catch (const Error& failure) {
    *why = failure.what();
  }
  return std::nullopt;
}

}  // namespace moesaic
