#include <string>

#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/cli/plan_job.h"
#include "serving/cli/plan_report.h"

namespace moesaic {

int PlanCommand(const Invocation& invocation) {
  CommandLine line(
      {"plan",
       "[MODEL]",
       "Plan a throughput job: which schedule, batch and placement finishes it soonest on a "
       "machine, what that takes of each memory, how long it is predicted to take, and what would "
       "help most. Model and machine may be presets, so that neither has to be there.",
       {"moesaic plan mixtral-8x7b --machine l4 --workload prompt=77,gen=64,requests=5000",
        "moesaic plan /data/model --workload prompts.jsonl --host-memory 16GiB --json"}});
  PlanJob job;
  bool json = false;
  OptionTable& table = line.table();
  job.AddOptions(table);
  table.Add({"json", &json, "", "Print the plan as JSON.", "Output"});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(job.has_model() ? 0 : 1);
  if (!line.positionals().empty()) job.SetModel(line.positionals().front());
  const PlannedThroughput planned = job.Run(invocation);
  if (json) {
    WriteOut(PlannedThroughputJson(planned).dump(2, ' ', false, Json::error_handler_t::replace) +
             "\n");
  } else {
    WriteOut(PlanReport(planned.plan, planned.workload, planned.has_gpu));
  }
  return 0;
}

}  // namespace moesaic
