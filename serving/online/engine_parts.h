// What plans and engines both derive from the options. Internal to serving/online and
// serving/batch.
#pragma once

#include "serving/online/engine_plan.h"
#include "serving/online/model_files.h"
#include "serving/online/part_options.h"
