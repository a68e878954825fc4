#include "core/base/memory_ledger.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(MemoryLedgerTest, AddsUpAndComparesWithItsLimit) {
  MemoryLedger ledger;
  EXPECT_EQ(ledger.total_bytes(), 0u);
  EXPECT_TRUE(ledger.fits());
  ledger.Add("slots", 70);
  ledger.Add({{"weights", 20}, {"slots", 11}});
  EXPECT_EQ(ledger.total_bytes(), 101u);
  EXPECT_EQ(ledger.bytes("slots"), 81u);
  EXPECT_EQ(ledger.bytes("weights"), 20u);
  EXPECT_EQ(ledger.bytes("cache"), 0u);
  EXPECT_TRUE(ledger.fits());  // no limit
  ledger.limit_bytes = 101;
  EXPECT_TRUE(ledger.fits());
  EXPECT_EQ(ledger.missing_bytes(), 0u);
  ledger.limit_bytes = 100;
  EXPECT_FALSE(ledger.fits());
  EXPECT_EQ(ledger.missing_bytes(), 1u);
}

TEST(MemoryLedgerTest, LinesAreForMessages) {
  MemoryLedger ledger;
  EXPECT_EQ(LedgerLines(ledger), "");
  ledger.Add("dense weights", 1 << 20);
  ledger.Add("process", 512);
  EXPECT_EQ(LedgerLines(ledger),
            "\n  dense weights               1.0 MiB\n  process                       512 B");
}

}  // namespace
}  // namespace moesaic
