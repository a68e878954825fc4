// The `moesaic` command: finds the command, runs it, turns errors into messages and exit codes.

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/thread_limit.h"
#include "core/config/option_table.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"

extern char** environ;

namespace moesaic {
namespace {

struct Command {
  const char* name;  // of one or two words
  const char* summary;
  int (*run)(const Invocation& invocation);
};

// "bench serve" before "bench": the first whose words are there is meant.
constexpr std::array<Command, 15> kCommands = {{
    {"run", "Answer a prompt, or chat, in the terminal", RunCommand},
    {"serve", "Serve a model over an OpenAI-compatible HTTP API", ServeCommand},
    {"serve-experts", "Serve an expert store to other machines", ServeExpertsCommand},
    {"batch", "Answer a file of requests", BatchCommand},
    {"show", "Describe a model: sizes, and what fits into which memory", ShowCommand},
    {"pull", "Download a model from the Hugging Face Hub", PullCommand},
    {"pack", "Write a model's experts into a store that reads faster", PackCommand},
    {"perplexity", "Measure how well a model predicts a text", PerplexityCommand},
    {"plan", "Plan a throughput job: schedule, batch, placement, time", PlanCommand},
    {"profile", "Measure this machine: disk, memory, compute", ProfileCommand},
    {"bench serve", "Measure a running server under load", BenchServeCommand},
    {"bench", "Measure prefill and decode rates of a model", BenchCommand},
    {"simulate", "Serve a routing trace on a virtual clock", SimulateCommand},
    {"trace", "Record, inspect, convert and compact routing traces", TraceCommand},
    {"version", "Show the version and what it was built from", VersionCommand},
}};

std::string Overview() {
  std::string out =
      "Moesaic serves mixture-of-experts language models larger than fast memory.\n\n"
      "Usage: moesaic COMMAND [arguments] [options]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    out += fmt::format("  {:<15}{}\n", command.name, command.summary);
  }
  out +=
      "\nStart here:\n"
      "  moesaic show models/sample\n"
      "  moesaic run models/sample --raw \"The old man\" --expert-memory 25% --stats\n"
      "  moesaic serve models/sample\n"
      "\n`moesaic COMMAND --help` describes a command and its options.\n";
  return out;
}

// The command that the first one or two words name, and how many words those are.
const Command* FindCommand(const std::vector<std::string>& words, size_t* used) {
  for (const Command& command : kCommands) {
    const std::string_view name = command.name;
    const size_t space = name.find(' ');
    if (words[0] == name) {
      *used = 1;
      return &command;
    }
    if (space != std::string_view::npos && words.size() > 1 && words[0] == name.substr(0, space) &&
        words[1] == name.substr(space + 1)) {
      *used = 2;
      return &command;
    }
  }
  return nullptr;
}

[[noreturn]] void FailUnknown(const std::string& word) {
  std::vector<std::string> names;
  names.reserve(kCommands.size());
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string nearest = NearestOf(word, names);
  Fail(ErrorKind::kInvalidArgument, "unknown command '{:.80}'{}", word,
       nearest.empty() ? "; `moesaic --help` lists them"
                       : fmt::format("; did you mean `moesaic {}`?", nearest));
}

int Dispatch(std::vector<std::string> words, const char* program) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    WriteOut(Overview());
    return 0;
  }
  if (words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
    return Dispatch(std::move(words), program);
  }
  if (words[0] == "--version" || words[0] == "-V") words[0] = "version";
  size_t used = 0;
  const Command* command = FindCommand(words, &used);
  if (command == nullptr) FailUnknown(words[0]);

  Invocation invocation;
  invocation.arguments.assign(words.begin() + static_cast<ptrdiff_t>(used), words.end());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    invocation.environment.emplace_back(*variable);
  }
  std::error_code error;
  invocation.executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) invocation.executable = program;
  return command->run(invocation);
}

// A message may quote what was given, however long that was.
std::string Shortened(std::string_view message) {
  constexpr size_t kMostBytes = 4000;
  if (message.size() <= kMostBytes) return std::string(message);
  return fmt::format("{:.{}}... ({} bytes more)", message, kMostBytes, message.size() - kMostBytes);
}

int Report(std::string_view message, int code) {
  const Style style = StyleFor(fileno(stderr));
  fmt::print(stderr, "{}{}error:{} {}\n", style.bold, style.red, style.reset, Shortened(message));
  return code;
}

int Main(int argc, char** argv) {
  // A reader that goes away is noticed by the failing write, so that temporary files are removed.
  std::signal(SIGPIPE, SIG_IGN);
  // So is a file that reaches the limit on sizes (ulimit -f): the write says EFBIG.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return Dispatch(std::vector<std::string>(argv + std::min(argc, 1), argv + argc),
                    argc > 0 ? argv[0] : "moesaic");
  } catch (const OutputClosed&) {
    return 0;
  } catch (const Error& error) {
    return Report(error.what(), ExitCode(error.kind()));
  } catch (const std::bad_alloc&) {
    return Report("out of memory; lower --memory, or --expert-memory where it is given",
                  ExitCode(ErrorKind::kResourceExhausted));
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return Report(error.what(), ExitCode(ErrorKind::kInternal));
    }
    return Report(ThreadLimitAdvice(), ExitCode(ErrorKind::kResourceExhausted));
  } catch (const std::exception& error) {
    return Report(error.what(), ExitCode(ErrorKind::kInternal));
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
