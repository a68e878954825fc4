// What this program was built from. The source is written by cmake/WriteBuildInfo.cmake at each
// build.
#pragma once

namespace moesaic {

struct BuildInfo {
  const char* version;     // "0.1.0"
  const char* git_commit;  // "1a2b3c4", "1a2b3c4-dirty", or "unknown" outside a git checkout
  const char* build_type;  // "Release"
  const char* compiler;    // "GNU 12.2.0"
  const char* sanitizers;  // "" or the value of -fsanitize
  const char* libraries;   // "fmt 9.1.0, spdlog 1.10.0, ..."
};

const BuildInfo& GetBuildInfo();

}  // namespace moesaic
