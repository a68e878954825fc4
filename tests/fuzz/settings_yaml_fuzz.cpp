// A YAML file of settings: what is accepted gives, when it is printed and read again, the same
// settings.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/settings_yaml.h"
#include "serving/cli/settings.h"

namespace {

struct Registered {
  Registered() { moesaic::AddSettings(settings, {true, true}, table); }
  moesaic::Settings settings;
  moesaic::OptionTable table;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Registered first;
  try {
    moesaic::ApplyConfigText(text, "fuzz.yaml", first.table);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
    return 0;
  }
  Registered second;
  moesaic::ApplyConfigText(moesaic::DescribeSettings(first.table), "printed.yaml", second.table);
  for (const moesaic::Option& option : first.table.options()) {
    CHECK_EQ(second.table.ValueText(option.name), first.table.ValueText(option.name));
  }
  return 0;
}
