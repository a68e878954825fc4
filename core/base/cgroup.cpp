#include "core/base/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

template <typename T>
std::optional<T> ParseInteger(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string> ReadFile(const fs::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A file that holds one number; "max" and what cannot be read are nullopt.
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  const auto text = ReadFile(path);
  return text ? ParseInteger<uint64_t>(*text) : std::nullopt;
}

// Sum of the named lines of memory.stat ("inactive_file 4096").
uint64_t SumStats(const fs::path& path, std::initializer_list<std::string_view> names) {
  std::istringstream lines(ReadFile(path).value_or(""));
  std::string name;
  uint64_t value = 0;
  uint64_t sum = 0;
  while (lines >> name >> value) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
  }
  return sum;
}

// mountinfo writes a space, tab, newline and backslash in octal.
std::string UnescapeOctal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8).ptr ==
            text.data() + i + 4) {
      out.push_back(static_cast<char>(value));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// `path` relative to `prefix`, when it lies under it: ("/docker/abc/x", "/docker/abc") -> "x".
std::optional<std::string> PathUnder(std::string_view path, std::string_view prefix) {
  if (prefix == "/") prefix = "";
  if (path.substr(0, prefix.size()) != prefix) return std::nullopt;
  path.remove_prefix(prefix.size());
  if (!path.empty() && path.front() != '/') return std::nullopt;
  while (!path.empty() && path.front() == '/') path.remove_prefix(1);
  return std::string(path);
}

// The directories of a process's group and of all its visible ancestors, the group first.
std::vector<fs::path> GroupChain(const fs::path& root, const CgroupMount& mount,
                                 const std::string& group) {
  const fs::path top = root / fs::path(mount.mount_point).relative_path();
  // A group outside the mounted part (the process was moved after the mount) shows only the top.
  fs::path relative = PathUnder(group, mount.root).value_or("");
  std::vector<fs::path> chain;
  for (; !relative.empty(); relative = relative.parent_path()) {
    std::error_code error;
    if (fs::is_directory(top / relative, error)) chain.push_back(top / relative);
  }
  chain.push_back(top);
  return chain;
}

void Tighten(std::optional<double>& quota, std::optional<double> other) {
  if (other && (!quota || *other < *quota)) quota = other;
}

void TightenMemory(CgroupLimits& limits, std::optional<uint64_t> limit_bytes, uint64_t used_bytes,
                   uint64_t reclaimable_bytes) {
  // Version 1 writes "no limit" as a number near 2^63.
  if (!limit_bytes || *limit_bytes >= (uint64_t{1} << 62)) return;
  const uint64_t held_bytes = used_bytes - std::min(used_bytes, reclaimable_bytes);
  const uint64_t left_bytes = *limit_bytes - std::min(*limit_bytes, held_bytes);
  if (limits.memory_left_bytes && *limits.memory_left_bytes <= left_bytes) return;
  limits.memory_left_bytes = left_bytes;
  limits.memory_limit_bytes = limit_bytes;
}

// The files have the same names in both versions.
void ReadThreads(const std::vector<fs::path>& chain, CgroupLimits& limits) {
  for (const fs::path& directory : chain) {
    const auto limit = ReadNumber(directory / "pids.max");
    const auto used = ReadNumber(directory / "pids.current");
    if (!limit || !used) continue;
    const auto left = [](uint64_t most, uint64_t now) { return most - std::min(most, now); };
    if (limits.threads_limit &&
        left(*limits.threads_limit, *limits.threads_used) <= left(*limit, *used)) {
      continue;
    }
    limits.threads_limit = limit;
    limits.threads_used = used;
  }
}

void ReadVersion2(const std::vector<fs::path>& chain, CgroupLimits& limits) {
  for (const fs::path& directory : chain) {
    if (const auto text = ReadFile(directory / "cpu.max")) {
      Tighten(limits.cpu_quota, ParseCpuMax(*text));
    }
    // memory.high throttles a group that passes it almost to a standstill, so it counts as a limit.
    for (const char* name : {"memory.max", "memory.high"}) {
      TightenMemory(limits, ReadNumber(directory / name),
                    ReadNumber(directory / "memory.current").value_or(0),
                    SumStats(directory / "memory.stat", {"active_file", "inactive_file"}));
    }
  }
}

void ReadVersion1Cpu(const std::vector<fs::path>& chain, CgroupLimits& limits) {
  for (const fs::path& directory : chain) {
    const auto quota = ReadNumber(directory / "cpu.cfs_quota_us");  // -1: none
    const auto period = ReadNumber(directory / "cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0) {
      Tighten(limits.cpu_quota, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  }
}

void ReadVersion1Memory(const std::vector<fs::path>& chain, CgroupLimits& limits) {
  for (const fs::path& directory : chain) {
    TightenMemory(
        limits, ReadNumber(directory / "memory.limit_in_bytes"),
        ReadNumber(directory / "memory.usage_in_bytes").value_or(0),
        SumStats(directory / "memory.stat", {"total_active_file", "total_inactive_file"}));
  }
}

bool Contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

std::vector<CgroupMembership> ParseProcCgroup(std::string_view text) {
  std::vector<CgroupMembership> result;
  for (const std::string& line : Split(text, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    CgroupMembership membership;
    membership.controllers =
        Split(std::string_view(line).substr(first + 1, second - first - 1), ',');
    membership.version2 = line.compare(0, first, "0") == 0 && membership.controllers.empty();
    membership.path = line.substr(second + 1);
    result.push_back(std::move(membership));
  }
  return result;
}

std::vector<CgroupMount> ParseMountInfo(std::string_view text) {
  std::vector<CgroupMount> result;
  for (const std::string& line : Split(text, '\n')) {
    // id parent major:minor root mount_point options [optional fields] - type source super_options
    const std::vector<std::string> fields = Split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    result.push_back({type == "cgroup2", Split(dash[3], ','), UnescapeOctal(fields[3]),
                      UnescapeOctal(fields[4])});
  }
  return result;
}

std::optional<double> ParseCpuMax(std::string_view text) {
  const std::vector<std::string> fields = Split(text.substr(0, text.find('\n')), ' ');
  if (fields.empty()) return std::nullopt;
  const auto quota = ParseInteger<uint64_t>(fields[0]);  // "max" is no number
  const auto period =
      fields.size() > 1 ? ParseInteger<uint64_t>(fields[1]) : std::optional<uint64_t>(100000);
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

CgroupLimits ReadCgroupLimits(const fs::path& root) {
  CgroupLimits limits;
  const auto mounts = ParseMountInfo(ReadFile(root / "proc/self/mountinfo").value_or(""));
  const auto memberships = ParseProcCgroup(ReadFile(root / "proc/self/cgroup").value_or(""));
  for (const CgroupMount& mount : mounts) {
    for (const CgroupMembership& membership : memberships) {
      if (mount.version2 != membership.version2) continue;
      if (mount.version2) {
        const std::vector<fs::path> chain = GroupChain(root, mount, membership.path);
        ReadVersion2(chain, limits);
        ReadThreads(chain, limits);
        continue;
      }
      for (const char* controller : {"cpu", "memory", "pids"}) {
        if (!Contains(mount.options, controller) || !Contains(membership.controllers, controller)) {
          continue;
        }
        const std::vector<fs::path> chain = GroupChain(root, mount, membership.path);
        if (std::string_view(controller) == "cpu") {
          ReadVersion1Cpu(chain, limits);
        } else if (std::string_view(controller) == "pids") {
          ReadThreads(chain, limits);
        } else {
          ReadVersion1Memory(chain, limits);
        }
      }
    }
  }
  return limits;
}

}  // namespace moesaic
