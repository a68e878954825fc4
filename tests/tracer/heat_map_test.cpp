#include "tracer/heat_map.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace moesaic {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Characters of a line as a terminal shows them: escape sequences take no room.
size_t ShownWidth(const std::string& line) {
  size_t width = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (line[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80) {
      ++width;
    }
  }
  return width;
}

ExpertActivationMatrix Filled(int layers, int experts) {
  ExpertActivationMatrix m(layers, experts);
  for (int layer = 0; layer < layers; ++layer) {
    for (int e = 0; e < experts; ++e)
      m.Add(layer, e, static_cast<uint32_t>(1 + (e * 7 + layer) % 11));
  }
  return m;
}

TEST(HeatMapTest, DrawsARowPerLayer) {
  ExpertActivationMatrix m(3, 4);
  m.Add(1, 0, 16);
  m.Add(1, 1, 9);
  m.Add(1, 2, 1);
  m.Add(2, 3, 5);
  EXPECT_EQ(FormatHeatMap(m, {.width = 48, .color = false, .title = "request 7"}),
            "request 7\n"
            "layer  0   1   2   3     used    busiest\n"
            "    1  ███ ▓▓▓ ░░░ ·        3     0  62%\n"
            "    2  ·   ·   ·   ███      1     3 100%\n"
            "       never ·░▒▓█ the layer's busiest; an even share is 25.0%\n"
            "       1 layer without expert use not shown\n");
}

TEST(HeatMapTest, EmptyMatrixSaysSo) {
  EXPECT_EQ(FormatHeatMap(ExpertActivationMatrix(2, 4), {}), "no expert was used\n");
  EXPECT_EQ(FormatHeatMap(ExpertActivationMatrix(), {.title = "t"}), "t\nno expert was used\n");
}

TEST(HeatMapTest, RowsFitTheWidthWhateverTheShape) {
  for (const int experts : {1, 2, 8, 60, 64, 128, 160, 256, 512, 4096}) {
    for (const int width : {40, 80, 133, 200}) {
      for (const bool color : {false, true}) {
        const std::string text =
            FormatHeatMap(Filled(20, experts), {.width = width, .color = color});
        const std::vector<std::string> lines = Lines(text);
        ASSERT_GE(lines.size(), 22u);
        for (size_t i = 0; i <= 20; ++i) {
          EXPECT_LE(ShownWidth(lines[i]), static_cast<size_t>(width))
              << experts << " experts: " << lines[i];
          EXPECT_EQ(ShownWidth(lines[i]), ShownWidth(lines[1])) << lines[i];
        }
      }
    }
  }
}

TEST(HeatMapTest, AGroupShowsItsBusiestExpert) {
  ExpertActivationMatrix m(1, 512);
  m.Add(0, 300, 100);
  m.Add(0, 5, 1);
  const std::vector<std::string> lines = Lines(FormatHeatMap(m, {.width = 80}));
  EXPECT_NE(lines[1].find("█"), std::string::npos);
  EXPECT_NE(lines[1].find("░"), std::string::npos);
  EXPECT_NE(lines.back().find("a column is"), std::string::npos);
}

TEST(HeatMapTest, ColorsAreResetOnEveryLine) {
  const std::string text = FormatHeatMap(Filled(3, 16), {.width = 80, .color = true, .title = "t"});
  for (const std::string& line : Lines(text)) {
    const size_t last = line.rfind("\x1b[");
    ASSERT_NE(last, std::string::npos);
    EXPECT_EQ(line.substr(last, 4), "\x1b[0m") << line;
  }
  EXPECT_EQ(FormatHeatMap(Filled(3, 16), {.width = 80}).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace moesaic
