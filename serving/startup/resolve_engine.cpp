#include "serving/startup/resolve_engine.h"

#include <utility>

#include "serving/startup/choose_reading.h"
#include "serving/startup/machine_options.h"

namespace moesaic {

EngineSetup ResolveEngine(const EngineOptions& asked, const Machine& machine) {
  EngineOptions options = OptionsOnMachine(asked, machine);
  ApplyNumaPolicy(*options.machine.numa);
  EngineSetup setup = SetUpEngine(options);
  const ReadDemand demand = {
      .experts = *setup.files.experts,
      .all_fit = setup.plan.expert_budget_bytes >= setup.plan.all_experts_bytes};
  if (ChooseReading(demand, machine, setup.options)) {
    setup.plan =
        PlanEngine(setup.options, setup.files);  // what is read at a time takes memory, too
  }
  return setup;
}

}  // namespace moesaic
