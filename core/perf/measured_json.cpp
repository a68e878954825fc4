#include "core/perf/measured_json.h"

#include <string>

namespace moesaic {
namespace {

constexpr double kMostMeasured = 1e18;

}  // namespace

Json MeasuredToJson(const Measured& measured) {
  return {{"value", measured.value}, {"low", measured.low}, {"high", measured.high},
          {"unit", measured.unit},   {"how", measured.how}, {"when", measured.when}};
}

Measured MeasuredFromJson(const JsonFields& parent, std::string_view key, double least,
                          double most) {
  const JsonFields fields(parent.Object(key), parent.file(), std::string(key) + ".");
  if (fields.Absent("value")) fields.FailAt("value", "is missing");
  Measured m;
  m.value = fields.Number("value", 0, least, most);
  m.low = fields.Number("low", m.value, 0, kMostMeasured);
  m.high = fields.Number("high", m.value, 0, kMostMeasured);
  m.unit = fields.String("unit", "");
  m.how = fields.String("how", "");
  m.when = fields.String("when", "");
  return m;
}

}  // namespace moesaic
