#include "serving/cli/output.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(OutputTest, TableAlignsColumns) {
  TextTable table("<>", 1);
  table.Add({"name", "value"});
  table.Add({"x", "1"});
  table.Add({"größer", "22"});
  EXPECT_EQ(table.Render(),
            " name    value\n"
            " x           1\n"
            " größer     22\n");
}

TEST(OutputTest, TableWithMissingCells) {
  TextTable table("<><");
  table.Add({"a"});
  table.Add({"bb", "1", "note"});
  EXPECT_EQ(table.Render(), "  a\n  bb  1  note\n");
}

TEST(OutputTest, DisplayWidthCountsCodePoints) {
  EXPECT_EQ(DisplayWidth(""), 0u);
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("█░"), 2u);
}

TEST(OutputTest, Durations) {
  EXPECT_EQ(FormatDuration(0.35), "350 ms");
  EXPECT_EQ(FormatDuration(12.34), "12.3 s");
  EXPECT_EQ(FormatDuration(245), "4 min 05 s");
  EXPECT_EQ(FormatDuration(3720), "1 h 02 min");
  EXPECT_EQ(FormatDuration(59.97), "1 min 00 s");
}

}  // namespace
}  // namespace moesaic
