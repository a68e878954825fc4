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
# Compiles a copy of NAME.cc in which the text WRONG, a bug of the pinned version, is RIGHT.
function(moesaic_mend_xgrammar name wrong right)
  set(source ${MOESAIC_XGRAMMAR_SOURCE}/cpp/${name}.cc)
  set(mended ${CMAKE_BINARY_DIR}/xgrammar/${name}.cc)
  if(source IN_LIST xgrammar_sources)
    file(READ ${source} text)
  else()
    file(READ ${mended} text)
  endif()
  string(FIND "${text}" "${wrong}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${source} has no \"${wrong}\". Is it another version? See whether it still needs mending "
                        "(cmake/MoesaicGrammar.cmake)")
  endif()
  string(REPLACE "${wrong}" "${right}" text "${text}")
  file(WRITE ${mended}.new "${text}")
  file(COPY_FILE ${mended}.new ${mended} ONLY_IF_DIFFERENT)
  list(REMOVE_ITEM xgrammar_sources ${source} ${mended})
  set(xgrammar_sources ${xgrammar_sources} ${mended} PARENT_SCOPE)
endfunction()
# (X)? also accepted the rest of an X that begins or ends with a repetition.
moesaic_mend_xgrammar(fsm "fsm.AddEpsilonEdge(start_, ends_.front())"
                      "return Union({FSMWithStartEnd(FSM(1), 0, {0}), *this})")
# Of two states that had been merged for what leads to them, one was merged with a third for what follows.
moesaic_mend_xgrammar(fsm "if (outgoing_count == 0) {
        if (result" "if (outgoing_count == 0) {
        if (union_find_set.Count(i)) {
        } else if (result")
# One is compiled within ours, which says what its objects have of memory.
list(REMOVE_ITEM xgrammar_sources ${MOESAIC_XGRAMMAR_SOURCE}/cpp/grammar_matcher.cc)
list(APPEND xgrammar_sources ${CMAKE_SOURCE_DIR}/serving/grammar/xgrammar_matcher.cpp)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${MOESAIC_XGRAMMAR_SOURCE}/include
  ${MOESAIC_XGRAMMAR_SOURCE}/3rdparty/dlpack/include PRIVATE ${MOESAIC_XGRAMMAR_SOURCE}/3rdparty/picojson
  ${MOESAIC_XGRAMMAR_SOURCE}/cpp ${CMAKE_SOURCE_DIR})
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
