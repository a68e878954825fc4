#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/thread_pool.h"
#include "core/base/units.h"
#include "core/io/checkpoint.h"
#include "kernels/cpu/kernels.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/model/coded_weights.h"
#include "serving/model/expert_sources.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/tensor_source.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

// Compares every expert of the store with what the model's tensors give, byte by byte.
void VerifyStore(const ModelConfig& config, ExpertPacker& packer, const ExpertSource& store) {
  const File file(store.files().front());
  const uint64_t slot_bytes = packer.layout().slot_bytes;
  AlignedBuffer expected(slot_bytes);
  AlignedBuffer found(slot_bytes);
  const std::vector<ExpertId> experts = AllExperts(config);
  ProgressBar bar("verifying", experts.size() * slot_bytes);
  uint64_t done_bytes = 0;
  for (const ExpertId id : experts) {
    packer.Pack(id, expected.span().first(slot_bytes));
    const uint64_t read_bytes =
        file.ReadAt(store.Extents(id).front().offset, found.span().first(slot_bytes));
    if (read_bytes != slot_bytes ||
        std::memcmp(expected.data(), found.data(), packer.layout().blob_bytes) != 0) {
      Fail(ErrorKind::kCorrupt,
           "{}: expert {} of layer {} differs from the model; write the store again with --force",
           file.path().string(), id.index, id.layer);
    }
    bar.Update(done_bytes += slot_bytes);
  }
  bar.Finish();
}

}  // namespace

int PackCommand(const Invocation& invocation) {
  CommandLine line(
      {"pack",
       "MODEL",
       "Write a model's experts into a store: one aligned extent for each, already in the "
       "layout of the kernels, so that reading one is one direct read. The store is tied to "
       "the checkpoint by a fingerprint; when it is current nothing is done, when the "
       "checkpoint has changed it is written again. Use it with --expert-store.",
       {"moesaic pack models/sample -o /tmp/sample.experts --weight-coding lossless",
        "moesaic pack models/sample -o /tmp/sample.experts --verify",
        "moesaic run models/sample --expert-store /tmp/sample.experts --expert-memory 25%"}});
  Settings settings;
  std::string output;
  bool verify = false;
  bool force = false;
  line.table().Add({"output", &output, "DIR", "Directory of the store.", "Output", 'o'});
  line.table().Add({"verify", &verify, "",
                    "Compare every expert of the store with the checkpoint, byte by byte.",
                    "Output"});
  line.table().Add({"force", &force, "", "Write the store even when it is current.", "Output"});
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(line.GivenAsFlag("model") ? 0 : 1);
  std::vector<std::string> positionals = line.positionals();
  TakeModel(line, settings.engine, positionals);
  if (output.empty()) {
    Fail(ErrorKind::kInvalidArgument, "-o DIR is missing: the directory of the store");
  }

  const EngineOptions options =
      OptionsOnMachine(settings.engine, ReadMachine(invocation.environment));
  ModelConfig model = LoadModelConfig(options.model_dir);
  const WeightType type = ChooseWeightType(options);
  std::unique_ptr<Checkpoint> checkpoint;  // none with dummy weights
  std::unique_ptr<TensorSource> tensors;
  if (options.load_format == LoadFormat::kDummy) {
    tensors = MakeDummyTensorSource(options.seed);
  } else {
    checkpoint = std::make_unique<Checkpoint>(Checkpoint::Open(options.model_dir));
    tensors = MakeCheckpointTensorSource(*checkpoint);
  }
  const CpuKernels& kernels = SelectKernels();
  ExpertLayout layout = MakeCpuExpertLayout(model, type);
  const auto experts = static_cast<uint64_t>(model.num_sparse_layers() * model.num_experts());
  const Stopwatch watch;

  if (!force && ExpertStoreIsCurrent(model, type, tensors->Fingerprint(), output)) {
    Print("{} is current: {} experts, {}\n", output, experts,
          FormatBytes(experts * layout.slot_bytes));
  } else {
    ThreadPool pool(options.threads, options.thread_layout);
    const auto write = [&] {
      ProgressBar bar("packing", experts * layout.slot_bytes);
      WriteExpertStore(model, type, *tensors, kernels, pool, output, [&](int64_t done, int64_t) {
        bar.Update(static_cast<uint64_t>(done) * layout.slot_bytes);
      });
      bar.Finish();
    };
    try {
      write();
    } catch (const UncodableExpert& error) {
      LogWarn("--weight-coding lossless: {}; all experts are written in bfloat16", error.what());
      model.coded_experts = false;
      layout = MakeCpuExpertLayout(model, type);
      write();
    }
    const uint64_t bytes = experts * layout.slot_bytes;
    Print("{}: {} experts, {} in {} ({})\n", output, experts, FormatBytes(bytes),
          FormatDuration(watch.seconds()),
          FormatRate(static_cast<double>(bytes) / watch.seconds()));
  }
  if (verify) {
    ExpertPacker packer(model, type, *tensors, kernels);
    const auto store = MakeStoreExpertSource(model, type, tensors->Fingerprint(),
                                             std::vector<std::filesystem::path>{output});
    VerifyStore(model, packer, *store);
    Print("verified: all {} experts equal the model's\n", experts);
  }
  return 0;
}

}  // namespace moesaic
