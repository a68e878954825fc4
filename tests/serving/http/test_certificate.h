// A self-signed certificate of localhost and its key, as PEM files, for tests of TLS.
#pragma once

#include <filesystem>

namespace moesaic {

struct TestCertificate {
  std::filesystem::path certificate;
  std::filesystem::path key;
};

// Writes NAME.crt and NAME.key, with `name` as the certificate's organisation. Valid for a day, or
// `expired` since one.
TestCertificate WriteTestCertificate(const std::filesystem::path& directory, const char* name,
                                     bool expired = false);

}  // namespace moesaic
