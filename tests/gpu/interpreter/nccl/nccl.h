// What core/device/nccl_collective_cuda.cpp uses of NCCL's interface, with the names, types and
// values that NCCL's documentation gives them. The header of tests only: a build that finds NCCL
// takes NCCL's own.
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

extern "C" {

using ncclComm_t = struct ncclComm*;

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
};

enum ncclDataType_t { ncclInt8 = 0 };

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* gpus);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
const char* ncclGetErrorString(ncclResult_t result);

}  // extern "C"
