// The module moesaic._core: what the Python files of the package are made of. Its names are the
// package's own affair; the package (bindings/python/moesaic) has the documented ones.

#include <nanobind/nanobind.h>

#include "bindings/python/bind.h"
#include "bindings/python/errors.h"
#include "serving/cli/build_info.h"

NB_MODULE(_core, module) {
  using namespace moesaic;          // NOLINT: names of this function only
  using namespace moesaic::python;  // NOLINT
  TranslateErrors();
  const BuildInfo& info = GetBuildInfo();
  module.attr("version") = info.version;
  module.attr("git_commit") = info.git_commit;
  module.attr("libraries") = info.libraries;
  BindEngine(module);
  BindTraces(module);
  BindJobs(module);
  BindBatch(module);
}
