#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/bind.h"
#include "bindings/python/keywords.h"
#include "serving/cli/plan_job.h"
#include "serving/cli/simulation_job.h"

namespace moesaic::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// The result as JSON.
std::string Simulate(const Keywords& options) {
  const nb::gil_scoped_release unlocked;
  SimulationJob job;
  OptionTable table;
  job.AddOptions(table);
  SetKeywords(options, "simulate", table);
  return job.Run(table).dump();
}

std::string Plan(const Keywords& options, std::vector<std::string> environment,
                 std::filesystem::path executable) {
  const nb::gil_scoped_release unlocked;
  PlanJob job;
  OptionTable table;
  job.AddOptions(table);
  SetKeywords(options, "plan", table);
  const PlannedThroughput planned = job.Run({{}, std::move(environment), std::move(executable)});
  return PlannedThroughputJson(planned).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void BindJobs(nb::module_& module) {
  module.def("simulate", &Simulate, "options"_a);
  module.def("plan", &Plan, "options"_a, "environment"_a, "executable"_a);
}

}  // namespace moesaic::python
