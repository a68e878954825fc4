#include "serving/cli/ray_batch.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

// Python's own words for a module that is missing do not say what to do.
constexpr const char* kProgram = R"(import sys
try:
    from moesaic.ray import batch
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"error: --ray: {sys.executable} has no module {error.name}, which runs jobs on a cluster; install it there: "
        "pip install 'moesaic[ray]'\n")
    sys.exit(2)
batch.main()
)";

}  // namespace

void AddRayFlags(RayFlags& flags, OptionTable& table) {
  const char* group = "Cluster";
  table.Add({"ray", &flags.address, "ADDRESS",
             "Answer the lines on the nodes of a Ray cluster: HOST:PORT, or auto for the one that "
             "runs here. The Python package does it (pip install 'moesaic[ray]').",
             group});
  const auto add_number = [&](const char* name, int64_t* target, const char* help) {
    Option option{name, target, "N", help, group, '\0', {}, 1, 1e6};
    option.quiet_default = true;
    table.Add(std::move(option));
  };
  add_number("ray-actors", &flags.actors,
             "Processes that answer. Default: one for each node that has CPUs.");
  add_number("ray-cpus", &flags.cpus,
             "CPUs of each of them. Default: those of its node, shared evenly.");
  table.Add({"ray-speeds", &flags.speeds, "LIST",
             "How fast the processes are, for the size of their shares: plan (what the planner "
             "expects of each node, where it has measured the model), cpus, or numbers like 2,1,1. "
             "Default: plan where all nodes can, else cpus.",
             group});
}

void ExecRayBatch(const Invocation& invocation, const CommandLine& line) {
  std::error_code error;
  std::string python = (invocation.executable.parent_path() / "python3").string();
  if (!std::filesystem::exists(python, error)) python = "python3";
  std::vector<std::string> words = {python, "-c", kProgram};
  words.insert(words.end(), line.positionals().begin(), line.positionals().end());
  words.insert(words.end(), line.flags().begin(), line.flags().end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  execvp(python.c_str(), arguments.data());
  Fail(ErrorKind::kNotFound,
       "--ray: {} cannot be run ({}); jobs on a cluster want Python and pip install "
       "'moesaic[ray]'",
       python, ErrnoMessage(errno));
}

}  // namespace moesaic
