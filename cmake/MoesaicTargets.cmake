# Flags that every target of the project gets, and the three ways a target is made.

add_library(moesaic_flags INTERFACE)
target_include_directories(moesaic_flags INTERFACE ${CMAKE_SOURCE_DIR})
# For C++ only: nvcc has options of its own, below.
# -ffp-contract=off: a fused multiply-add is written where it is meant. Contracting at the compiler's
# will would give one source different bits per instruction set (architecture, rule 1).
function(moesaic_cxx_options)
  foreach(option ${ARGN})
    target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()
moesaic_cxx_options(-Wall -Wextra -Wnon-virtual-dtor -ffp-contract=off
                    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:MOESAIC_MAY_SHADOW>>>:-Wshadow>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms from `"text" + std::string(...)` (GCC bug 105651).
  moesaic_cxx_options(-Wno-restrict)
endif()
# GCC's flow-based warnings see ghosts in instrumented code (and at -Og: the debug preset has no -Werror); the release
# and asan (clang) builds judge warnings.
if(MOESAIC_WERROR AND NOT (MOESAIC_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"))
  moesaic_cxx_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  moesaic_cxx_options(-Wthread-safety -Werror=thread-safety)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # To the compiler every file is a header then, where unnamed namespaces in a type are suspicious.
  moesaic_cxx_options(-Wno-subobject-linkage)
endif()
# All warnings of nvcc and of its host compiler. Relaxed constexpr: plain constexpr functions of shared headers, which
# know no __device__, may be called in kernels. --fmad=false: as -ffp-contract=off above; it also keeps the driver, which
# compiles the PTX for newer GPUs, from fusing.
target_compile_options(moesaic_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;--fmad=false>")
if(MOESAIC_SANITIZE)
  target_compile_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE})
endif()
if(MOESAIC_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It says at every use of Asio's fences, for pages, that the sanitizer does not see them.
  moesaic_cxx_options(-Wno-tsan)
endif()

# The tests' own code takes longer to compile than to run (prefetch_test, clang 14 with the address sanitizer: 30 s of
# CPU, 13 s at -O0).
if(MOESAIC_SANITIZE)
  set(MOESAIC_TEST_OPTIONS -O0)
elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(MOESAIC_TEST_OPTIONS -O1)
endif()

# What most files include, parsed once (a second or two a file). Presets that compile file by file leave it out
# (CMAKE_DISABLE_PRECOMPILE_HEADERS), so that a missing include is found there. Three kinds of target make their own:
# libraries are position independent, those that are fuzzed have counters, tests are executables with options of their own.
set(MOESAIC_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <filesystem> <fstream> <functional> <map>
    <memory> <optional> <random> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>
    <fmt/format.h>)
set(source ${CMAKE_BINARY_DIR}/common_headers.cpp)
file(WRITE ${source}.new "int main() {}\n")
file(COPY_FILE ${source}.new ${source} ONLY_IF_DIFFERENT)
add_library(moesaic_library_headers OBJECT EXCLUDE_FROM_ALL ${source})
target_link_libraries(moesaic_library_headers PRIVATE moesaic_flags fmt::fmt)
target_precompile_headers(moesaic_library_headers PRIVATE ${MOESAIC_COMMON_HEADERS})
if(MOESAIC_BUILD_FUZZERS)
  add_library(moesaic_fuzzed_headers OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(moesaic_fuzzed_headers PRIVATE moesaic_flags fmt::fmt)
  target_precompile_headers(moesaic_fuzzed_headers PRIVATE ${MOESAIC_COMMON_HEADERS})
  target_compile_options(moesaic_fuzzed_headers PRIVATE -fsanitize=fuzzer-no-link)
endif()
if(MOESAIC_BUILD_TESTS)
  add_executable(moesaic_test_headers EXCLUDE_FROM_ALL ${source})
  target_link_libraries(moesaic_test_headers PRIVATE moesaic_flags fmt::fmt GTest::gtest)
  target_precompile_headers(moesaic_test_headers PRIVATE ${MOESAIC_COMMON_HEADERS} <gtest/gtest.h>)
  target_compile_options(moesaic_test_headers PRIVATE ${MOESAIC_TEST_OPTIONS})
endif()

# moesaic_library(NAME [FUZZED] SOURCES a.cpp ... LINKS lib ...): one static library per folder. LINKS is
# public: it is the declared direction of dependencies, which the layering test checks. FUZZED: it parses
# what others wrote, and libFuzzer is guided by its coverage (a quarter more to compile, under clang).
function(moesaic_library name)
  cmake_parse_arguments(ARG "FUZZED" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  if(ARG_FUZZED AND MOESAIC_BUILD_FUZZERS)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
    target_precompile_headers(${name} REUSE_FROM moesaic_fuzzed_headers)
  else()
    target_precompile_headers(${name} REUSE_FROM moesaic_library_headers)
  endif()
  target_link_libraries(${name} PUBLIC moesaic_flags ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS})
  foreach(source ${ARG_SOURCES})
    get_source_file_property(own_flags ${source} COMPILE_OPTIONS)
    if(own_flags)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# moesaic_test(NAME SOURCES ... LINKS ... [LABELS label] [ENVIRONMENT NAME=VALUE]): a GoogleTest program, one ctest
# entry per test.
# The label `concurrent` marks the tests that the thread sanitizer runs; `instruction_sets` those that name the
# instruction sets of their kernels, so that MOESAIC_ISA changes nothing in them (scripts/test_isa.sh).
add_custom_target(concurrent_tests)
function(moesaic_test name)
  cmake_parse_arguments(ARG "" "ENVIRONMENT" "SOURCES;LINKS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_LINKS} GTest::gtest_main)
  # In a unity build a name in one test may hide a name of another one.
  set_target_properties(${name} PROPERTIES MOESAIC_MAY_SHADOW "${CMAKE_UNITY_BUILD}")
  target_compile_definitions(${name} PRIVATE
    MOESAIC_TEST_DATA_DIR="${CMAKE_SOURCE_DIR}/tests/data"
    MOESAIC_SAMPLE_MODEL_DIR="${CMAKE_SOURCE_DIR}/models/sample")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if("concurrent" IN_LIST ARG_LABELS)
    add_dependencies(concurrent_tests ${name})
  endif()
  set(timeout_s 300)
  if(MOESAIC_SANITIZE)
    set(timeout_s 1200)  # instrumented kernels are twenty times slower
  endif()
  set(environment)
  if(ARG_ENVIRONMENT)
    set(environment ENVIRONMENT ${ARG_ENVIRONMENT})
  endif()
  target_compile_options(${name} PRIVATE ${MOESAIC_TEST_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM moesaic_test_headers)
  # What a preset does not run it does not build either.
  string(JOIN "|" left_out_labels ${MOESAIC_TEST_LABELS_LEFT_OUT})
  if((left_out_labels AND ARG_LABELS MATCHES "${left_out_labels}") OR
     (MOESAIC_TESTS_LEFT_OUT AND name MATCHES "${MOESAIC_TESTS_LEFT_OUT}"))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${timeout_s} ${environment})
endfunction()

# moesaic_bench(NAME SOURCES ... LINKS ...): a Google Benchmark program; built by the target `benches`
# only, so that it is never part of `make test`.
add_custom_target(benches)
function(moesaic_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  add_dependencies(benches ${name})
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_LINKS} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# moesaic_relocatable(NAME): the program first looks for its libraries in ../lib beside it, and so do those libraries
# (DT_RPATH, which unlike DT_RUNPATH counts for them too): what scripts/bundle.sh puts there is found wherever it lies.
function(moesaic_relocatable name)
  set_target_properties(${name} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
                        INSTALL_RPATH "$ORIGIN/../lib;${ARGN}")
  target_link_options(${name} PRIVATE LINKER:--disable-new-dtags)
endfunction()

# moesaic_gpu_test, moesaic_gpu_bench: the same for a GPU, part of the targets gpu_tests and gpu_benches only.
add_custom_target(gpu_tests)
add_custom_target(gpu_benches)
function(moesaic_gpu_test name)
  moesaic_test(${name} ${ARGN} LABELS gpu)
  moesaic_relocatable(${name})
  add_dependencies(gpu_tests ${name})
endfunction()
# moesaic_interpreted_test(NAME LINKS lib ... GPUS n ... [LABELS label]): the objects of the GPU test NAME, linked with
# the interpreter of tests/gpu/interpreter instead of the CUDA runtime, and run with so many emulated GPUs. Part of the
# target interpreted_tests, and those with the label `interpreted`, which CI runs, of interpreted_kernel_tests.
add_custom_target(interpreted_tests)
add_custom_target(interpreted_kernel_tests)
function(moesaic_interpreted_test name)
  cmake_parse_arguments(ARG "" "" "LINKS;GPUS;LABELS" ${ARGN})
  set(program ${name}_interpreted)
  add_executable(${program} $<TARGET_OBJECTS:${name}>)
  target_link_libraries(${program} PRIVATE moesaic_flags ${ARG_LINKS} moesaic_ptx_runtime GTest::gtest_main)
  # Nothing of the real runtime: a function that the interpreter lacks is named by the linker.
  set_target_properties(${program} PROPERTIES MOESAIC_INTERPRETED ON CUDA_RUNTIME_LIBRARY None LINKER_LANGUAGE CXX
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(interpreted_tests ${program})
  if("interpreted" IN_LIST ARG_LABELS)
    add_dependencies(interpreted_kernel_tests ${program})
  endif()
  foreach(gpus ${ARG_GPUS})
    gtest_discover_tests(${program} TEST_PREFIX "${gpus}gpu." TEST_LIST ${program}_${gpus} DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 ENVIRONMENT MOESAIC_PTX=gpus=${gpus})
  endforeach()
endfunction()
function(moesaic_gpu_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  add_dependencies(gpu_benches ${name})
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_LINKS})
  moesaic_relocatable(${name} /usr/local/cuda/lib64)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# moesaic_fuzzer(NAME SOURCES ... LINKS ...): a libFuzzer target (clang only).
add_custom_target(fuzzers)
function(moesaic_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE moesaic_flags ${ARG_LINKS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
