# xgrammar's C++ core as a static library (target xgrammar), of the sources that scripts/fetch_xgrammar.sh puts into
# build/third_party. Its own CMakeLists.txt sets flags for everything (-flto, -Werror), so the target is made here.

set(MOESAIC_GRAMMAR AUTO CACHE STRING
    "Structured output by xgrammar: ON, OFF, or AUTO (ON where scripts/fetch_xgrammar.sh has fetched it)")
set_property(CACHE MOESAIC_GRAMMAR PROPERTY STRINGS AUTO ON OFF)
file(STRINGS ${CMAKE_SOURCE_DIR}/scripts/xgrammar.txt pin REGEX "^xgrammar==")
string(REGEX REPLACE "^xgrammar==([^ ]*) .*" "\\1" xgrammar_VERSION "${pin}")
set(MOESAIC_XGRAMMAR_SOURCE ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar-${xgrammar_VERSION} CACHE PATH
    "Where the sources of xgrammar are")
mark_as_advanced(MOESAIC_XGRAMMAR_SOURCE)

set(moesaic_has_grammar OFF)
if(NOT MOESAIC_GRAMMAR STREQUAL "AUTO")
  set(moesaic_has_grammar ${MOESAIC_GRAMMAR})
elseif(EXISTS ${MOESAIC_XGRAMMAR_SOURCE}/.complete)
  set(moesaic_has_grammar ON)
endif()
if(NOT moesaic_has_grammar)
  message(STATUS "Structured output: off, requests for it get 400 (scripts/fetch_xgrammar.sh fetches xgrammar "
                 "${xgrammar_VERSION}; MOESAIC_GRAMMAR is ${MOESAIC_GRAMMAR})")
  return()
endif()
if(NOT EXISTS ${MOESAIC_XGRAMMAR_SOURCE}/CMakeLists.txt)
  message(FATAL_ERROR "MOESAIC_GRAMMAR is ON, but ${MOESAIC_XGRAMMAR_SOURCE} has no sources: run "
                      "scripts/fetch_xgrammar.sh, or set MOESAIC_GRAMMAR=OFF")
endif()
message(STATUS "Structured output: xgrammar ${xgrammar_VERSION}")
file(GLOB xgrammar_sources ${MOESAIC_XGRAMMAR_SOURCE}/cpp/*.cc ${MOESAIC_XGRAMMAR_SOURCE}/cpp/support/*.cc
     ${MOESAIC_XGRAMMAR_SOURCE}/cpp/converter_ext/*.cc)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${MOESAIC_XGRAMMAR_SOURCE}/include
  ${MOESAIC_XGRAMMAR_SOURCE}/3rdparty/dlpack/include PRIVATE ${MOESAIC_XGRAMMAR_SOURCE}/3rdparty/picojson)
# What it logs goes to the server's log (serving/grammar/xgrammar_log.cpp).
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
if(MOESAIC_SANITIZE)
  target_compile_options(xgrammar PRIVATE -O0 -g0)  # it takes longer to compile than to run
endif()
# Warnings are its authors' affair. Its files share names, so no unity build.
target_compile_options(xgrammar PRIVATE -w)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD OFF)
target_link_libraries(xgrammar PRIVATE Threads::Threads)
foreach(sanitizer address thread)
  if(MOESAIC_SANITIZE MATCHES ${sanitizer})
    target_compile_options(xgrammar PRIVATE -fsanitize=${sanitizer} -fno-omit-frame-pointer)
  endif()
endforeach()
