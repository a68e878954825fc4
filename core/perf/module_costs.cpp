#include "core/perf/module_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <system_error>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/json_fields.h"
#include "core/perf/measured_json.h"
#include "core/perf/model_shape.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxCostsBytes = uint64_t{4} << 20;
constexpr double kMostSeconds = 1e6;
constexpr double kMostCostRate = 1e18;
constexpr double kMostExperts = 1 << 16;
constexpr size_t kMostRoutingPoints = 1024;

constexpr std::array<const char*, kNumModules> kModuleNames = {
    "attention in", "decode attention", "prefill attention", "output", "router", "expert", "head"};

double Required(const JsonFields& fields, std::string_view key, double least, double most) {
  if (fields.Absent(key)) fields.FailAt(key, "is missing");
  return fields.Number(key, 0, least, most);
}

std::vector<RoutedRows> RoutingFromJson(const JsonFields& fields) {
  std::vector<RoutedRows> routing;
  const nlohmann::json* array = fields.Find("routing");
  if (array == nullptr) return routing;
  if (!array->is_array() || array->size() > kMostRoutingPoints) {
    fields.FailAt("routing", "must be an array of [rows, experts, repeated]");
  }
  constexpr const char* kTriples = "must be an array of [rows, experts, repeated]";
  RoutedRows last;
  for (const nlohmann::json& triple : *array) {
    const bool numbers =
        triple.is_array() && triple.size() == 3 &&
        std::all_of(triple.begin(), triple.end(), [](const auto& n) { return n.is_number(); });
    if (!numbers) fields.FailAt("routing", kTriples);
    const RoutedRows point = {triple[0].get<double>(), triple[1].get<double>(),
                              triple[2].get<double>()};
    if (!(point.rows > last.rows && point.rows <= kMostCostRate && point.experts >= last.experts &&
          point.experts <= kMostExperts && point.repeated >= last.repeated &&
          point.repeated <= point.experts)) {
      fields.FailAt("routing", "must rise from one to the next");
    }
    routing.push_back(last = point);
  }
  return routing;
}

}  // namespace

const char* ModuleName(Module module) { return kModuleNames[static_cast<size_t>(module)]; }

const char* ModuleUnit(Module module) {
  return module == Module::kDecodeAttention || module == Module::kPrefillAttention ? "position"
                                                                                   : "row";
}

double ModuleCosts::Routed(double RoutedRows::*field, double rows) const {
  const auto above =
      std::find_if(routing.begin(), routing.end(), [&](const auto& p) { return p.rows >= rows; });
  if (above == routing.end()) return routing.back().*field;
  if (above == routing.begin()) return (*above).*field * std::max(0.0, rows) / above->rows;
  const RoutedRows& below = *std::prev(above);
  const double share = std::log(rows / below.rows) / std::log(above->rows / below.rows);
  return below.*field + share * ((*above).*field - below.*field);
}

double ModuleCosts::ActiveExperts(int64_t num_experts, int64_t top_k, double rows) const {
  if (routing.empty()) return ExpectedActiveExperts(num_experts, top_k, rows);
  return std::min(static_cast<double>(num_experts), Routed(&RoutedRows::experts, rows));
}

double ModuleCosts::RepeatedExperts(int64_t num_experts, int64_t top_k, double rows) const {
  const double active = ActiveExperts(num_experts, top_k, rows);
  if (routing.empty()) return active * active / static_cast<double>(num_experts);
  return std::min(active, Routed(&RoutedRows::repeated, rows));
}

std::vector<NamedConstant> ModuleCosts::Constants() const {
  std::vector<NamedConstant> constants;
  const auto measured = [&](std::string name, std::string unit, double value, std::string note) {
    constants.push_back(
        {std::move(name), std::move(unit), {value, Provenance::kMeasured, std::move(note)}});
  };
  for (size_t i = 0; i < kNumModules; ++i) {
    const auto module = static_cast<Module>(i);
    const ModuleCost& cost = modules[i];
    const std::string note = fmt::format("{}; {} points, median error {:.1f}%", created,
                                         cost.points, 100 * cost.relative_error);
    measured(fmt::format("{}, fixed", ModuleName(module)), "s", cost.fixed_s, note);
    measured(fmt::format("{}, per {}", ModuleName(module), ModuleUnit(module)), "s",
             cost.per_unit_s, note);
  }
  measured("disk to slots", "byte/s", link.value, link.how);
  measured("of it while computing", "share", contended_link_share.value, contended_link_share.how);
  measured("of computing while reading", "share", contended_compute_share.value,
           contended_compute_share.how);
  measured("copying in host memory", "byte/s", host_copy.value, host_copy.how);
  return constants;
}

std::string SerializeModuleCosts(const ModuleCosts& costs) {
  Json root = {{"format", "moesaic-module-costs"},
               {"version", ModuleCosts::kVersion},
               {"key", costs.key},
               {"host_fingerprint", costs.host_fingerprint},
               {"model", costs.model},
               {"created", costs.created}};
  for (size_t i = 0; i < kNumModules; ++i) {
    const ModuleCost& cost = costs.modules[i];
    root["modules"][kModuleNames[i]] = {{"fixed_s", cost.fixed_s},
                                        {"per_unit_s", cost.per_unit_s},
                                        {"unit", ModuleUnit(static_cast<Module>(i))},
                                        {"relative_error", cost.relative_error},
                                        {"points", cost.points},
                                        {"how", cost.how}};
  }
  root["link"] = MeasuredToJson(costs.link);
  root["contended_link_share"] = MeasuredToJson(costs.contended_link_share);
  root["contended_compute_share"] = MeasuredToJson(costs.contended_compute_share);
  root["host_copy"] = MeasuredToJson(costs.host_copy);
  root["cores"] = costs.cores;
  Json& routing = root["routing"] = Json::array();
  for (const RoutedRows& point : costs.routing) {
    routing.push_back({point.rows, point.experts, point.repeated});
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

ModuleCosts ParseModuleCosts(std::string_view json, std::string_view name) {
  const nlohmann::json root = ParseJsonObject(json, name);
  const JsonFields fields(root, name);
  fields.RequireFormat("moesaic-module-costs", ModuleCosts::kVersion,
                       "remove the file, it is measured again");
  ModuleCosts costs;
  costs.key = fields.String("key", "");
  costs.host_fingerprint = fields.String("host_fingerprint", "");
  costs.model = fields.String("model", "");
  costs.created = fields.String("created", "");
  const nlohmann::json& modules = fields.Object("modules");
  const JsonFields module_fields(modules, name, "modules.");
  for (size_t i = 0; i < kNumModules; ++i) {
    const std::string path = fmt::format("modules.{}.", kModuleNames[i]);
    const JsonFields module(module_fields.Object(kModuleNames[i]), name, path);
    ModuleCost& cost = costs.modules[i];
    cost.fixed_s = Required(module, "fixed_s", 0, kMostSeconds);
    cost.per_unit_s = Required(module, "per_unit_s", 0, kMostSeconds);
    cost.relative_error = module.Number("relative_error", 0, 0, kMostCostRate);
    cost.points = module.Int("points", 0, 0, INT32_MAX);
    cost.how = module.String("how", "");
  }
  // A link that carries nothing, or a share of nothing, would make endless plans.
  costs.link = MeasuredFromJson(fields, "link", 1, kMostCostRate);
  costs.contended_link_share = MeasuredFromJson(fields, "contended_link_share", 0.01, 1);
  costs.contended_compute_share = MeasuredFromJson(fields, "contended_compute_share", 0.01, 1);
  costs.host_copy = MeasuredFromJson(fields, "host_copy", 1, kMostCostRate);
  costs.cores = fields.Int("cores", 1, 1, INT32_MAX);
  costs.routing = RoutingFromJson(fields);
  return costs;
}

fs::path ModuleCostsPath(const fs::path& directory, std::string_view key) {
  return directory / fmt::format("{:016x}.json", Hash64(key));
}

void SaveModuleCosts(const ModuleCosts& costs, const fs::path& directory) {
  SaveTextFile(ModuleCostsPath(directory, costs.key), SerializeModuleCosts(costs));
}

std::optional<ModuleCosts> LoadModuleCosts(const fs::path& directory, std::string_view key,
                                           std::string* why) {
  const fs::path file = ModuleCostsPath(directory, key);
  std::error_code error;
  if (!fs::exists(file, error)) {
    *why = "not measured yet";
    return std::nullopt;
  }
  try {
    ModuleCosts costs = ParseModuleCosts(ReadTextFile(file, kMaxCostsBytes), file.string());
    if (costs.key == key) return costs;
    *why = fmt::format("{} is of something else", file.string());
  } catch (const Error& failure) {
    *why = failure.what();
  }
  return std::nullopt;
}

}  // namespace moesaic
