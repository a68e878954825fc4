// The presets of models and machines: what is accepted can be computed with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/perf/machine_spec.h"
#include "core/perf/model_shape.h"

namespace {

using moesaic::ErrorKind;

void CheckShape(std::string_view text) {
  try {
    const moesaic::ModelShape shape = moesaic::ParseModelShape(text, "model.yaml");
    CHECK_GT(shape.ExpertBytes(), 0u);
    CHECK_GT(shape.KvBytesPerToken(), 0u);
    CHECK_GE(shape.TotalParameters(), shape.DenseParameters());
    CHECK_GE(shape.DenseParameters(), shape.EmbeddingParameters());
    CHECK(std::isfinite(shape.AttentionFlopPerPosition()));
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
  }
}

void CheckMachine(std::string_view text, moesaic::ConstantChoice choice) {
  try {
    const moesaic::MachineSpec machine = moesaic::ParseMachineSpec(text, "machine.yaml", choice);
    CHECK_GT(machine.link_in_bytes_per_s.value, 0);
    for (const moesaic::NamedConstant& named : machine.Constants()) {
      CHECK(std::isfinite(named.constant.value) && named.constant.value > 0);
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckShape(text);
  CheckMachine(text, moesaic::ConstantChoice::kPreferMeasured);
  CheckMachine(text, moesaic::ConstantChoice::kSpecSheet);
  return 0;
}
