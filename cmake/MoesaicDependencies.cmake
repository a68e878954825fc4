# Third-party packages, all from the distribution (scripts/setup.sh installs them); the minimum versions are those of
# Debian 12.

find_package(Threads REQUIRED)
find_package(fmt 9.1 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
# Its configuration accepts no minor version but its own, so the minimum is checked here.
find_package(simdjson REQUIRED)
if(simdjson_VERSION VERSION_LESS 3.0)
  message(FATAL_ERROR "simdjson ${simdjson_VERSION} is too old, 3.0 is needed")
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(numa REQUIRED IMPORTED_TARGET numa>=2.0.16)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash>=0.8)
pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.42)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece>=0.1.97)
find_package(yaml-cpp 0.7 REQUIRED)
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW)  # CMake 3.30 and later: Boost's own configuration, not FindBoost
endif()
find_package(Boost 1.74 REQUIRED)  # headers only: Asio and Beast
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)  # TLS of the server
find_package(ZLIB REQUIRED)        # gzipped traces and test vectors
if(MOESAIC_FAISS)
  # Its configuration wants OpenMP of the compiler at hand; the package was compiled by GCC, so its runtime is libgomp,
  # whatever compiles this.
  if(NOT TARGET OpenMP::OpenMP_CXX)
    add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
    target_link_libraries(OpenMP::OpenMP_CXX INTERFACE gomp)
  endif()
  find_package(faiss 1.7.3 CONFIG REQUIRED)
endif()
# Headers only. Before version 5 (Debian 12) it has another name, and so has its target.
find_package(msgpack-cxx CONFIG QUIET)
if(msgpack-cxx_FOUND)
  set(msgpack_VERSION ${msgpack-cxx_VERSION})
else()
  find_package(msgpack 4.1 CONFIG REQUIRED)
  add_library(msgpack-cxx ALIAS msgpackc-cxx)
endif()
if(MOESAIC_CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
  # nvcc where it is not in the PATH.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  # The CUDA runtime, linked in: a program starts where there is no CUDA, and says so when asked for it. Programs with
  # the property MOESAIC_INTERPRETED have the interpreter of tests/gpu/interpreter in its place.
  add_library(moesaic_cudart INTERFACE)
  target_link_libraries(moesaic_cudart INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:MOESAIC_INTERPRETED>>,moesaic_ptx_runtime,CUDA::cudart_static>)
  target_include_directories(moesaic_cudart SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # nvcc compresses the PTX in object files, which the interpreter reads.
  pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd>=1.4)
  # Not needed: devices exchange what they share by peer copies without it.
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(MOESAIC_NCCL ON)
    message(STATUS "NCCL: ${NCCL_LIBRARY}, ${NCCL_INCLUDE_DIR}/nccl.h")
  else()
    message(STATUS "NCCL: not found, built without it")
  endif()
  # Not needed either: all products are our own kernels' without it. It is beside the runtime's headers.
  find_path(CUBLAS_INCLUDE_DIR cublas_v2.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CUBLAS_INCLUDE_DIR)
    set(MOESAIC_CUBLAS ON)
    message(STATUS "cuBLAS: ${CUBLAS_INCLUDE_DIR}/cublas_v2.h")
  else()
    message(STATUS "cuBLAS: not found, built without it")
  endif()
endif()
if(MOESAIC_BUILD_TESTS)
  find_package(GTest 1.12 REQUIRED)
  include(GoogleTest)
endif()
if(MOESAIC_BUILD_BENCHES)
  find_package(benchmark 1.7 REQUIRED)
endif()
