#include <nlohmann/json.hpp>

#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/cli/simulation_job.h"

namespace moesaic {

int SimulateCommand(const Invocation& invocation) {
  CommandLine line(
      {"simulate",
       "",
       "Serve a recorded routing trace on a virtual clock with the cache, the transfer queue, the "
       "predictors and the miss planner that serve models, and report how long layers waited for "
       "experts. One token is one step; the cache starts cold.",
       {"moesaic simulate --trace gpt_oss.jsonl.gz --hold-out 4 --slots 25% --json",
        "moesaic simulate --trace decode.jsonl --predictor none --policy lru --slots 192"}});
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
  TextTable text("<>");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_array()) text.Add({key, value.dump()});  // lists are for programs
  }
  Print("{}", text.Render());
  return 0;
}

}  // namespace moesaic
