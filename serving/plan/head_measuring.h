// MeasureHead: what it takes to get from the hidden states of a pass to tokens: final norm, logits
// and sampling. Internal to serving/plan.
#pragma once

#include "core/perf/linear_fit.h"
#include "serving/plan/module_profiler.h"
#include "serving/plan/pass_meter.h"

namespace moesaic {

// Seconds by rows that want a token, in one block of limits().max_logit_rows at most: a constant
// term and one per row. Runs passes of decoding rows.
LinearFit MeasureHead(PassMeter& passes, const ModuleProfilerInputs& inputs);

}  // namespace moesaic
