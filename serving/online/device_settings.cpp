#include "core/base/units.h"
#include "core/config/setting_section.h"
#include "serving/online/engine_settings.h"

namespace moesaic {
namespace {

constexpr Named<bool> kCollectives[] = {{"peer", false}, {"nccl", true}};
constexpr Named<bool> kGemms[] = {{"own", false}, {"cublas", true}};

// A device's memory is known to nobody yet.
void RefuseShare(std::string_view text, std::string_view what) {
  if (text != "auto") ParseBytes(text, what);
}

}  // namespace

void AddDeviceSettings(DeviceOptions& options, bool visible, OptionTable& table) {
  const SettingSection devices(table, "Devices", visible);
  devices.Add({.name = "devices",
               .target = &options.count,
               .help = "Devices that hold experts in memory of their own; all experts then also "
                       "live in host memory. 0: none (with --device-kind cuda: one).",
               .min = 0,
               .max = 64});
  devices.Add({.name = "device-kind",
               .target = OneOf(&options.kind, kDeviceKinds),
               .help = "emulated: a device whose memory is host memory behind a slow link, out of "
                       "which the host computes. cuda: GPUs, which compute the experts that they "
                       "hold."});
  devices.Add({.name = "device-memory",
               .target = &options.memory,
               .help = "Memory for experts on each device: a size, or a share of the experts that "
                       "the device holds (25% on every device: a quarter of all experts). auto: "
                       "what --gpu-memory leaves; without that, 25% on an emulated device, at "
                       "least one expert."});
  devices.Add({.name = "gpu-memory",
               .target = &options.gpu_memory,
               .help = "All that is taken of each device's memory: workspace, experts and what it "
                       "has of the dense part. auto: what a GPU has, less a reserve.",
               .check = RefuseShare});
  devices.Add({.name = "gpu-dense",
               .target = OneOf(&options.dense, kDenseModes),
               .help = "Where attention with its KV cache and all else that is dense is computed: "
                       "on the first GPU (on), on all of them, each a part of the heads and of "
                       "every matrix's outputs (tp: tensor parallelism, the same answers), or on "
                       "the CPU (off). auto: on the first GPU when its kernels can do the model "
                       "and its memory has room for that and the experts of a token."});
  devices.Add({.name = "gpu-collective",
               .target = OneOf(&options.nccl, kCollectives),
               .help = "What GPUs that share the dense part (--gpu-dense tp) exchange their pieces "
                       "by: copies between them, or NCCL where the build found it. The same "
                       "bits."});
  devices.Add({.name = "gpu-gemm",
               .target = OneOf(&options.cublas, kGemms),
               .help = "What multiplies 64 rows and more by the dense matrices on a GPU: our own "
                       "kernels, or cuBLAS where the build and the machine have it, which sums in "
                       "another order and needs --numerics fast."});
  devices.Add({.name = "miss",
               .target = OneOf(&options.miss, kMissModes),
               .help = "An expert that is on no device when it is needed: fetch it, compute it on "
                       "the host, or (auto) whichever ends sooner by the rates measured so far. "
                       "Devices that round otherwise than the host (cuda) need --numerics fast for "
                       "the last two."});
  devices.Add({.name = "emulated-link-gbps",
               .target = InUnits(&options.emulated_link.bytes_per_s, 1e9, 0, 1e6),
               .value_name = "GBPS",
               .help = "Rate of an emulated device's link in GB/s. 0: as fast as memory can be "
                       "copied."});
  devices.Add({.name = "emulated-link-latency-us",
               .target = &options.emulated_link.latency_us,
               .value_name = "US",
               .help = "Time that each copy over an emulated link takes besides.",
               .min = 0,
               .max = 1e6});
  devices.Add({.name = "emulated-loss-at-copy",
               .target = &options.emulated_loss_at_copy,
               .help = "The last emulated device is lost when it would start its Nth copy (of a "
                       "packet), as a GPU can be. 0: never.",
               .min = 0,
               .max = 1e15});
}

}  // namespace moesaic
