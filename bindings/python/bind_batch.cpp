#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/python/bind.h"
#include "bindings/python/shared_batch.h"
#include "core/base/error.h"

namespace moesaic::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): for ""_a

BatchInputForm FormOf(const std::string& name) {
  if (name == "auto") return BatchInputForm::kAuto;
  if (name == "jsonl") return BatchInputForm::kJsonl;
  if (name == "text") return BatchInputForm::kText;
  Fail(ErrorKind::kInvalidArgument, "--input-format: '{:.40}' is none of auto, jsonl, text", name);
}

void Make(SharedBatch* batch, std::filesystem::path input, std::filesystem::path output,
          std::filesystem::path errors, bool resume, bool overwrite, const std::string& form,
          const std::string& model, int64_t max_tokens) {
  const nb::gil_scoped_release unlocked;
  const BatchPaths paths = {std::move(input), std::move(output), std::move(errors), resume,
                            overwrite};
  new (batch) SharedBatch(paths, FormOf(form), model, max_tokens);
}

nb::list OpenLines(const SharedBatch& batch) {
  nb::list lines;
  for (const SharedBatch::Line& line : batch.Open()) {
    lines.append(nb::make_tuple(line.number, line.prompt_tokens, line.output_tokens));
  }
  return lines;
}

nb::bytes Part(const SharedBatch& batch, std::vector<int64_t> numbers) {
  std::string part;
  {
    const nb::gil_scoped_release unlocked;
    part = batch.Part(std::move(numbers));
  }
  return nb::bytes(part.data(), part.size());
}

std::string_view ViewOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

void BindBatch(nb::module_& module) {
  nb::class_<SharedBatch>(module, "SharedBatch",
                          "The files of a batch job that several processes answer.")
      .def("__init__", &Make, "input"_a, "output"_a, "errors"_a, "resume"_a, "overwrite"_a,
           "form"_a, "model"_a, "max_tokens"_a)
      .def_prop_ro("form",
                   [](const SharedBatch& batch) {
                     return batch.form() == BatchInputForm::kText ? "text" : "jsonl";
                   })
      .def_prop_ro("lines", &SharedBatch::lines)
      .def_prop_ro("resumed", &SharedBatch::resumed)
      .def_prop_ro("refused", &SharedBatch::refused)
      .def("open", &OpenLines)
      .def("part", &Part, "numbers"_a)
      .def(
          "answer",
          [](SharedBatch& batch, const nb::bytes& line) { return batch.Answer(ViewOf(line)); },
          "line"_a)
      .def(
          "refuse",
          [](SharedBatch& batch, const nb::bytes& line) { return batch.Refuse(ViewOf(line)); },
          "line"_a)
      .def("sync", &SharedBatch::Sync, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace moesaic::python
