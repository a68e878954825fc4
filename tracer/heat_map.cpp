#include "tracer/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace moesaic {
namespace {

// From nearly black over violet and red to pale yellow, after matplotlib's inferno, in xterm's
// 256-colour cube; the first is "never used".
constexpr std::array<int, 10> kRamp = {235, 53, 90, 126, 161, 197, 203, 209, 215, 229};
constexpr std::array<std::string_view, 5> kShades = {"·", "░", "▒", "▓", "█"};
constexpr int kUsedWidth = 6;      // "  used"
constexpr int kBusiestWidth = 11;  // "    busiest"
constexpr std::string_view kDim = "\x1b[38;5;245m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kReset = "\x1b[0m";

// How experts are laid out in columns.
struct Columns {
  int experts_each = 1;
  int count = 0;
  int cell_width = 1;  // characters, the gap to the next cell included
};

Columns LayOut(int num_experts, int room) {
  Columns columns;
  columns.experts_each = (num_experts + room - 1) / room;
  // Groups of a power of two keep the axis readable, and the usual counts of experts divide evenly.
  int group = 1;
  while (group < columns.experts_each) group *= 2;
  columns.experts_each = group;
  columns.count = (num_experts + group - 1) / group;
  columns.cell_width = std::clamp(room / columns.count, 1, 4);
  return columns;
}

class Canvas {
 public:
  Canvas(const ExpertActivationMatrix& matrix, const HeatMapOptions& options)
      : matrix_(matrix), options_(options) {
    for (int layer = 0; layer < matrix.num_layers(); ++layer) {
      if (matrix.row_sum(layer) == 0) continue;
      layers_.push_back(layer);
    }
    label_width_ = static_cast<int>(std::to_string(std::max(matrix.num_layers() - 1, 0)).size());
    label_width_ = std::max(label_width_, 5);  // "layer"
    const int num_experts = std::max(matrix.num_experts(), 1);
    const int room = std::max(options.width, 40) - label_width_ - 2;
    columns_ = LayOut(num_experts, room - kUsedWidth - kBusiestWidth);
    // Smaller groups of experts say more than the busiest expert's name.
    const Columns wider = LayOut(num_experts, room - kUsedWidth);
    show_busiest_ = wider.experts_each == columns_.experts_each;
    if (!show_busiest_) columns_ = wider;
  }

  std::string Draw() {
    if (!options_.title.empty()) {
      Style(kBold);
      out_ += options_.title;
      Unstyle();
      out_ += '\n';
    }
    if (layers_.empty()) {
      out_ += "no expert was used\n";
      return out_;
    }
    Axis();
    for (const int layer : layers_) Row(layer);
    Legend();
    return out_;
  }

 private:
  // 0: never used; 1 .. levels - 1: more and more, up to the layer's busiest expert.
  static int Level(uint32_t count, uint32_t busiest, int levels) {
    if (count == 0) return 0;
    const double brightness = std::sqrt(static_cast<double>(count) / busiest);
    return std::clamp(static_cast<int>(std::ceil(brightness * (levels - 1))), 1, levels - 1);
  }
  void Style(std::string_view style) {
    if (options_.color) out_ += style;
  }
  void Unstyle() {
    if (options_.color) out_ += kReset;
  }

  // Numbers of experts above the columns, as many as fit without touching.
  void Axis() {
    const int line_width = columns_.count * columns_.cell_width;
    std::string line(static_cast<size_t>(line_width), ' ');
    const int widest = static_cast<int>(std::to_string(matrix_.num_experts() - 1).size()) + 1;
    int step = 1;  // columns between two numbers; a power of two keeps them round
    while (step * columns_.cell_width < widest || (columns_.cell_width == 1 && step < 8)) step *= 2;
    for (int column = 0; column < columns_.count; column += step) {
      const std::string number = std::to_string(column * columns_.experts_each);
      const auto at = static_cast<size_t>(column * columns_.cell_width);
      if (at + number.size() <= line.size()) line.replace(at, number.size(), number);
    }
    Style(kDim);
    out_ += fmt::format("{:>{}}  {}  used{}", "layer", label_width_, line,
                        show_busiest_ ? "    busiest" : "");
    Unstyle();
    out_ += '\n';
  }

  void Row(int layer) {
    Style(kDim);
    out_ += fmt::format("{:>{}}", layer, label_width_);
    Unstyle();
    out_ += "  ";
    const std::span<const uint32_t> counts = matrix_.Row(layer);
    const auto busiest = std::max_element(counts.begin(), counts.end());
    int background = -1;
    for (int column = 0; column < columns_.count; ++column) {
      const auto first = counts.begin() + column * columns_.experts_each;
      const auto last = first + std::min<int64_t>(columns_.experts_each, counts.end() - first);
      const uint32_t count = *std::max_element(first, last);
      if (options_.color) {
        const int color = kRamp[static_cast<size_t>(Level(count, *busiest, kRamp.size()))];
        if (color != background) out_ += fmt::format("\x1b[48;5;{}m", color);
        background = color;
        out_.append(static_cast<size_t>(columns_.cell_width), ' ');
      } else {
        Shade(Level(count, *busiest, kShades.size()));
      }
    }
    Unstyle();
    Style(kDim);
    out_ += fmt::format("  {:>4}", matrix_.distinct(layer));
    if (show_busiest_) {
      const double share =
          static_cast<double>(*busiest) / static_cast<double>(matrix_.row_sum(layer));
      out_ += fmt::format("  {:>4}{:>4.0f}%", busiest - counts.begin(), 100 * share);
    }
    Unstyle();
    out_ += '\n';
  }

  // Wide cells are filled but for a gap; an unused one is a single dot.
  void Shade(int level) {
    const int filled = columns_.cell_width > 2 ? columns_.cell_width - 1 : columns_.cell_width;
    const int marks = level == 0 ? 1 : filled;
    for (int i = 0; i < marks; ++i) out_ += kShades[static_cast<size_t>(level)];
    out_.append(static_cast<size_t>(columns_.cell_width - marks), ' ');
  }

  void Note(const std::string& text) {
    out_.append(static_cast<size_t>(label_width_) + 2, ' ');
    Style(kDim);
    out_ += text;
    Unstyle();
    out_ += '\n';
  }

  void Legend() {
    out_.append(static_cast<size_t>(label_width_) + 2, ' ');
    Style(kDim);
    out_ += "never ";
    Unstyle();
    if (options_.color) {
      for (const int color : kRamp) out_ += fmt::format("\x1b[48;5;{}m  ", color);
      Unstyle();
    } else {
      for (const std::string_view shade : kShades) out_ += shade;
    }
    Style(kDim);
    out_ += fmt::format(" the layer's busiest; an even share is {:.1f}%",
                        100.0 / matrix_.num_experts());
    Unstyle();
    out_ += '\n';
    if (columns_.experts_each > 1) {
      Note(fmt::format("a column is {} experts, shown by the busiest", columns_.experts_each));
    }
    const int hidden = matrix_.num_layers() - static_cast<int>(layers_.size());
    if (hidden > 0) {
      Note(fmt::format("{} layer{} without expert use not shown", hidden, hidden == 1 ? "" : "s"));
    }
  }

  const ExpertActivationMatrix& matrix_;
  const HeatMapOptions& options_;
  std::vector<int> layers_;  // that have tokens
  int label_width_ = 0;
  Columns columns_;
  bool show_busiest_ = true;
  std::string out_;
};

}  // namespace

std::string FormatHeatMap(const ExpertActivationMatrix& matrix, const HeatMapOptions& options) {
  return Canvas(matrix, options).Draw();
}

}  // namespace moesaic
