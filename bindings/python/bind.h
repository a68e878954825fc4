// The parts of the module, one function for each file.
#pragma once

#include <nanobind/nanobind.h>

namespace moesaic::python {

void BindBatch(nanobind::module_& module);
void BindEngine(nanobind::module_& module);
void BindJobs(nanobind::module_& module);
void BindTraces(nanobind::module_& module);

}  // namespace moesaic::python
