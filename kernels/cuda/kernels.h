// The kernels of a device as a table of functions, for code that runs on a GPU and, in tests, on an
// emulated device with the same sources compiled for the host (tests/gpu/host). Every function
// queues kernels and returns; see the headers that it comes from.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/rows.h"

namespace moesaic::cuda {

struct Kernels {
  LaunchResult (*rms_norm)(const RmsNormArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*rope)(const RopeArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*embedding)(const EmbeddingArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*swiglu)(const SwiGluArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*add_gated)(const AddGatedArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*argmax)(const ArgMaxArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*join_columns)(const JoinColumnsArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*router_logits)(const RouterLogitsArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*router_top_k)(const RouterTopKArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*group_rows)(const GroupRowsArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*look_up_experts)(const LookUpExpertsArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*tell_host)(const TellHostArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*combine_slots)(const CombineSlotsArgs& args, StreamHandle stream) = nullptr;
  LaunchResult (*product)(const ProductArgs& args, ProductPath path, StreamHandle stream) = nullptr;
  LaunchResult (*store_kv)(const StoreKvArgs& args, StreamHandle stream) = nullptr;
  int64_t (*attention_workspace_floats)(const AttentionArgs& args) = nullptr;
  LaunchResult (*attention)(const AttentionArgs& args, StreamHandle stream) = nullptr;
};

// Those of CUDA devices; null in a build without CUDA.
const Kernels* CompiledKernels();

// Loads all kernels onto the current GPU (CudaDeviceOptions::load_kernels).
LaunchResult LoadKernels();

// Fetch of rows.h, as a CUDA device takes it (CudaDeviceOptions::fetch).
LaunchResult FetchFromHost(void* to, const void* from, uint64_t bytes, StreamHandle stream);

}  // namespace moesaic::cuda
