# Run at each build (cmake -P): writes OUTPUT when its content changes, so that only a new commit makes
# a new program. Wants SOURCE_DIR, OUTPUT, VERSION, BUILD_TYPE, COMPILER, SANITIZERS, LIBRARIES.

set(commit "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${head}")
    execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()

set(content "// Written by cmake/WriteBuildInfo.cmake.
#include \"serving/cli/build_info.h\"

namespace moesaic {

const BuildInfo& GetBuildInfo() {
  static constexpr BuildInfo kInfo = {
      \"${VERSION}\", \"${commit}\", \"${BUILD_TYPE}\",
      \"${COMPILER}\", \"${SANITIZERS}\",
      \"${LIBRARIES}\"};
  return kInfo;
}

}  // namespace moesaic
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${content}")
  file(WRITE ${OUTPUT} "${content}")
endif()
