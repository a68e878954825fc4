#include "serving/http/connection_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moesaic {
namespace {

TEST(ConnectionMemoryTest, WhereThereIsRoomAllAreCounted) {
  ServerOptions options;
  const uint64_t bytes = FitConnections(options, uint64_t{1} << 40);
  EXPECT_EQ(options.max_connections, ServerOptions().max_connections);
  EXPECT_EQ(options.probe_connections, ServerOptions().probe_connections);
  EXPECT_EQ(bytes,
            (options.max_connections + options.probe_connections) * ConnectionBytes(options));
}

TEST(ConnectionMemoryTest, ASmallMachineHasFewerAndNoneHasNone) {
  for (const uint64_t limit_bytes : {0, 1 << 10, 1 << 20, 10 << 20, 30 << 20}) {
    ServerOptions options;
    const uint64_t bytes = FitConnections(options, limit_bytes);
    EXPECT_GE(options.max_connections, 1u);
    EXPECT_GE(options.probe_connections, 1u);
    EXPECT_LE(bytes, std::max(limit_bytes, 2 * ConnectionBytes(options)));
    // Nearly all of it is used.
    EXPECT_GT(bytes + 2 * ConnectionBytes(options), limit_bytes);
  }
}

TEST(ConnectionMemoryTest, TlsTakesMore) {
  ServerOptions plain;
  ServerOptions tls;
  tls.ssl_certfile = "cert.pem";
  EXPECT_GT(ConnectionBytes(tls), ConnectionBytes(plain));
  FitConnections(plain, 20 << 20);
  FitConnections(tls, 20 << 20);
  EXPECT_LT(tls.max_connections, plain.max_connections);
}

}  // namespace
}  // namespace moesaic
