#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/units.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/cli/simulation_job.h"

namespace moesaic {
namespace {

// A row for each way of sharing the memory.
void PrintSharing(const nlohmann::ordered_json& object) {
  Print("{} requests, {} of memory for {} of models\n\n", object["arrivals"].get<int64_t>(),
        FormatBytes(object["memory_bytes"].get<uint64_t>()),
        FormatBytes(object["whole_bytes"].get<uint64_t>()));
  TextTable text("<>>>>>>>");
  text.Add({"memory", "counted", "mean s", "p50 s", "p99 s", "read", "moved", "loads"});
  const auto seconds = [](const nlohmann::ordered_json& of, const char* key) {
    return of.contains(key) ? fmt::format("{:.3f}", of[key].get<double>()) : std::string("-");
  };
  for (const auto& [name, of] : object["sharing"].items()) {
    text.Add({name, of["requests"].dump(), seconds(of, "mean_s"), seconds(of, "p50_s"),
              seconds(of, "p99_s"), FormatBytes(of["read_bytes"].get<uint64_t>()),
              FormatBytes(of["moved_bytes"].get<uint64_t>()), of["loads"].dump()});
  }
  Print("{}", text.Render());
}

}  // namespace

int SimulateCommand(const Invocation& invocation) {
  CommandLine line(
      {"simulate",
       "",
       "Serve a recorded routing trace on a virtual clock with the cache, the transfer queue, the "
       "predictors and the miss planner that serve models, and report how long layers waited for "
       "experts. One token is one step; the cache starts cold. With several traces, the latencies "
       "of requests to several models that share a memory.",
       {"moesaic simulate --trace gpt_oss.jsonl.gz --hold-out 4 --slots 25% --json",
        "moesaic simulate --trace decode.jsonl --predictor none --policy lru --slots 192",
        "moesaic simulate --trace a.jsonl.gz --trace b.jsonl.gz --arrivals azure.csv --rate 2 "
        "--memory 50% --expert-size 12MiB"}});
  OptionTable& table = line.table();
  SimulationJob job;
  bool json = false;
  job.AddOptions(table);
  table.Add({"json", &json, "", "Print one JSON object.", "Output"});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(0);
  const nlohmann::ordered_json object = job.Run(table);
  if (json) {
    Print("{}\n", object.dump());
    return 0;
  }
  if (object.contains("sharing")) {
    PrintSharing(object);
    return 0;
  }
  TextTable text("<>");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_array()) text.Add({key, value.dump()});  // lists are for programs
  }
  Print("{}", text.Render());
  return 0;
}

}  // namespace moesaic
