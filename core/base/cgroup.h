// CgroupLimits: what the control groups of this process (version 1, 2 or both at once) allow it.
//
// A limit anywhere on the way from the process's group up to the root of the hierarchy counts, so
// the whole chain is read. Plain data; reading is safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct CgroupLimits {
  // CPU time per wall time: 1.5 is one and a half CPUs.
  std::optional<double> cpu_quota;
  // The tightest group: its limit, and what is left of it. Clean page cache that is charged to the
  // group counts as left, because the kernel takes it back before it fails an allocation.
  std::optional<uint64_t> memory_limit_bytes;
  std::optional<uint64_t> memory_left_bytes;
  // Processes and threads (pids.max): of the group that can have the fewest more; both or none.
  std::optional<uint64_t> threads_limit;
  std::optional<uint64_t> threads_used;
};

// `root` is "/" on a real machine; the tests pass a directory that holds a made-up /proc and /sys.
CgroupLimits ReadCgroupLimits(const std::filesystem::path& root = "/");

// One line of /proc/self/cgroup: the controllers ("" for version 2) and the group's path.
struct CgroupMembership {
  std::vector<std::string> controllers;
  bool version2 = false;
  std::string path;
};
std::vector<CgroupMembership> ParseProcCgroup(std::string_view text);

// A cgroup file system of /proc/self/mountinfo. `root` is the group that is visible at
// `mount_point` ("/docker/abc" in a container without a cgroup namespace).
struct CgroupMount {
  bool version2 = false;
  std::vector<std::string> options;  // version 1: includes the controllers' names
  std::string root;
  std::string mount_point;
};
std::vector<CgroupMount> ParseMountInfo(std::string_view text);

// "max 100000" or "150000 100000"; nullopt when there is no limit or the text is something else.
std::optional<double> ParseCpuMax(std::string_view text);

}  // namespace moesaic
