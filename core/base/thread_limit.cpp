#include "core/base/thread_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "core/base/cgroup.h"

namespace moesaic {

std::string ThreadLimitAdvice(const std::filesystem::path& root) {
  // A few may have ended since.
  constexpr uint64_t kNearlyFull = 16;
  const CgroupLimits limits = ReadCgroupLimits(root);
  if (limits.threads_limit && *limits.threads_limit < *limits.threads_used + kNearlyFull) {
    return fmt::format(
        "no more threads can be started: the control group allows {} processes and threads "
        "(pids.max) and has {}; raise it (--pids-limit of a container, TasksMax= of a systemd "
        "unit), or lower --threads",
        *limits.threads_limit, *limits.threads_used);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return fmt::format(
        "no more threads can be started: this user may have {} processes and threads in all "
        "(RLIMIT_NPROC); raise it (ulimit -u, LimitNPROC= of a systemd unit), end other processes, "
        "or lower --threads",
        limit.rlim_cur);
  }
  return "no more threads can be started, though neither pids.max nor RLIMIT_NPROC is reached: "
         "memory or kernel.threads-max is used up; end other processes, or lower --threads";
}

}  // namespace moesaic
