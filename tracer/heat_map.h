// FormatHeatMap: an expert activation matrix as a picture for a terminal: a row per layer, a column
// per expert (or per group of neighbours, where they are too many for the width).
//
// Thread contract: a function of its arguments.
#pragma once

#include <string>
#include <string_view>

#include "tracer/expert_activation_matrix.h"

namespace moesaic {

struct HeatMapOptions {
  int width = 80;      // characters per line; at least 40 are used
  bool color = false;  // xterm's 256 colours; otherwise Unicode shades
  std::string_view title = {};
};

// UTF-8 text, lines end in '\n'. Brightness is an expert's count relative to that of the layer's
// busiest expert, on a square-root scale; a group of experts shows its busiest one. Beside each
// row: how many experts were used, which was the busiest, and its share of the layer's tokens.
// Layers without any token (dense ones) are left out and mentioned.
std::string FormatHeatMap(const ExpertActivationMatrix& matrix, const HeatMapOptions& options);

}  // namespace moesaic
