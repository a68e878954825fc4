#include "serving/model/latent.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <variant>
#include <vector>

#include "core/base/check.h"
#include "kernels/cpu/indexer.h"
#include "serving/model/attention_sizes.h"

namespace moesaic {
namespace {

// Rows of a head's products in one task: its weights, which other heads do not need, are read once
// for them.
constexpr int64_t kPieceRows = 64;
// Queries that share the values which are turned out of a chunk of rows: at least a tile, and no
// more than leave the chunk in the second-level cache.
constexpr int64_t kFewestQueries = kMaxAttentionTile;
constexpr int64_t kMostQueries = 48;
// Heads of a row that share the rows which are gathered for it: many, as these are its alone.
constexpr int64_t kMostChosenHeads = 64;
constexpr int64_t kMostTotals = std::max(kMostQueries, kMostChosenHeads);
// Up to so many queries a thread the chunks of a context are spread over the threads.
constexpr int64_t kSplitQueriesPerThread = 8;

KvLayout LayoutOf(const LatentSpec& spec, WeightType type) {
  return {
      .num_kv_heads = 1, .head_dim = spec.row_width(), .type = type, .latent_values = spec.kv_rank};
}

int64_t PartialFloats(const LatentSpec& spec) { return AttentionPartialFloats(spec.kv_rank); }

int64_t SplitQueries(const LatentSpec& spec, int threads) {
  return std::max(spec.heads, kSplitQueriesPerThread * threads);
}

// A head's part of the row that attention leaves, which later holds its values.
int64_t MixedSlot(const LatentSpec& spec) { return std::max(spec.kv_rank, spec.value_dim); }

// Panels of the queries' matrix that have rows of one head.
int64_t QueryFloats(const LatentSpec& spec) {
  return (spec.query_dim() + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs + kPanelOutputs;
}

int64_t RoundedBytes(const LatentSpec& spec) {
  return ActivationRowBytes(ActivationType::kF32, std::max(spec.nope_dim, spec.kv_rank));
}

int64_t ProductScratchBytes(const LatentSpec& spec) {
  return kPieceRows *
         (QueryFloats(spec) * static_cast<int64_t>(sizeof(float)) + RoundedBytes(spec));
}

// Of the positions that are chosen.
int64_t ChosenChunks(const LatentSpec& spec) {
  return (spec.top_k + kAttentionChunkTokens - 1) / kAttentionChunkTokens;
}

// Chunks that a row attends to at most.
int64_t MostChunks(const LatentSpec& spec, const ModelLimits& limits) {
  return spec.top_k == 0 ? MaxChunks(limits) : std::min(MaxChunks(limits), ChosenChunks(spec));
}

// The rows of a chunk that are gathered, on a line of their own.
int64_t GatherFloats(const LatentSpec& spec, WeightType kv_type) {
  if (spec.top_k == 0) return 0;
  constexpr int64_t kBlocks = kAttentionChunkTokens / kKvBlockTokens;
  return kBlocks * LayoutOf(spec, kv_type).block_bytes() / static_cast<int64_t>(sizeof(float)) + 16;
}

int64_t TotalFloats(const LatentSpec& spec) {
  return (spec.top_k > 0 ? kMostTotals : kMostQueries) * PartialFloats(spec);
}

int64_t AttendScratchFloats(const LatentSpec& spec, WeightType kv_type) {
  return TotalFloats(spec) + AttentionScratchFloats(LayoutOf(spec, kv_type)) +
         GatherFloats(spec, kv_type);
}

int64_t SplitFloats(const LatentSpec& spec, const ModelLimits& limits, int threads) {
  return SplitQueries(spec, threads) * MostChunks(spec, limits) * PartialFloats(spec);
}

// [layers of a block]: what the largest layer has in its place.
std::vector<uint64_t> PlaceBytes(const ModelConfig& config, WeightType kv_type) {
  const KvGroups groups = KvGroupsOf(config);
  std::vector<uint64_t> bytes(static_cast<size_t>(groups.layers_of_block), 0);
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const auto* const spec = std::get_if<LatentSpec>(&config.layers[layer].mixer);
    if (spec == nullptr) continue;
    uint64_t& of_place = bytes[static_cast<size_t>(groups.index[layer])];
    of_place = std::max(of_place, static_cast<uint64_t>(LayoutOf(*spec, kv_type).block_bytes()) +
                                      Indexer::KeyBlockBytes(*spec, kv_type));
  }
  return bytes;
}

std::vector<uint64_t> BeginsOf(const std::vector<uint64_t>& bytes) {
  std::vector<uint64_t> begins(bytes.size(), 0);
  std::exclusive_scan(bytes.begin(), bytes.end(), begins.begin(), uint64_t{0});
  return begins;
}

int64_t ChunksOf(const AttendArgs& args) {
  return (args.context_end + args.rows - 2) / kAttentionChunkTokens + 1;
}

}  // namespace

MixerWidths WidthsOf(const LatentSpec& spec) {
  // Queries, the token's row, and what the indexer has.
  return {.projected = (spec.heads + 1) * spec.row_width() + Indexer::ProjectedFloats(spec),
          .mixed = spec.heads * MixedSlot(spec),
          .input = std::max(spec.output_width(), spec.q_rank)};
}

uint64_t Latent::BlockBytes(const ModelConfig& config, WeightType kv_type) {
  const std::vector<uint64_t> places = PlaceBytes(config, kv_type);
  return std::accumulate(places.begin(), places.end(), uint64_t{0});
}

uint64_t Latent::BytesOfAllLayers(const ModelConfig& config, WeightType kv_type) {
  const KvGroups groups = KvGroupsOf(config);
  const std::vector<uint64_t> places = PlaceBytes(config, kv_type);
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (std::holds_alternative<LatentSpec>(config.layers[layer].mixer)) {
      bytes += places[static_cast<size_t>(groups.index[layer])];
    }
  }
  return bytes;
}

uint64_t Latent::CarriedBytes(const ModelConfig& config) {
  const auto shares = [](const LayerSpec& layer) {
    const auto* const spec = std::get_if<LatentSpec>(&layer.mixer);
    return spec != nullptr && spec->top_k > 0 && spec->indexer.heads == 0;
  };
  if (std::none_of(config.layers.begin(), config.layers.end(), shares)) return 0;
  return Indexer::ChoiceBytes(*config.FindMixer<LatentSpec>());
}

uint64_t Latent::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int threads) {
  const auto* const spec = config.FindMixer<LatentSpec>();
  if (spec == nullptr) return 0;
  const int64_t floats = limits.max_batch_tokens * PaddedFloats(spec->q_rank) +
                         AttendScratchFloats(*spec, limits.kv_type) * threads +
                         SplitFloats(*spec, limits, threads);
  return static_cast<uint64_t>(floats * static_cast<int64_t>(sizeof(float)) +
                               ProductScratchBytes(*spec) * threads +
                               RopeTable::Bytes(spec->rope_dim, limits.max_context_tokens)) +
         Indexer::WorkspaceBytes(*spec, limits, threads);
}

Latent::Latent(const ModelConfig& config, const ModelWeights& weights, const CpuKernels& kernels,
               const ModelLimits& limits, int most_threads, HostActivations& activations)
    : spec_(*config.FindMixer<LatentSpec>()),
      weights_(weights),
      kernels_(kernels),
      limits_(limits),
      layout_(LayoutOf(spec_, limits.kv_type)),
      groups_(KvGroupsOf(config)),
      place_bytes_(PlaceBytes(config, limits.kv_type)),
      place_begins_(BeginsOf(place_bytes_)),
      slabs_(KvSlabsOf(limits, BlockBytes(config, limits.kv_type))),
      carried_bytes_(CarriedBytes(config)),
      most_threads_(most_threads),
      rope_({.head_dim = spec_.rope_dim, .rotary_dim = spec_.rope_dim, .rope = spec_.rope},
            config.max_position, limits.max_context_tokens),
      activations_(activations),
      cache_(slabs_.Bytes(limits.num_kv_blocks)),
      queries_(ZeroedFloats(limits.max_batch_tokens * PaddedFloats(spec_.q_rank))),
      product_scratch_(static_cast<size_t>(ProductScratchBytes(spec_) * most_threads)),
      attend_scratch_(ZeroedFloats(AttendScratchFloats(spec_, limits.kv_type) * most_threads)),
      split_partials_(ZeroedFloats(SplitFloats(spec_, limits, most_threads))),
      pass_(limits, groups_.count()) {
  CHECK(limits.kv_type != WeightType::kInt8);  // CheckContext (serving/online/engine_checks.h)
  const int64_t parts = (spec_.heads + kFewestQueries - 1) / kFewestQueries;
  tasks_.reserve(static_cast<size_t>(limits.max_batch_tokens * parts));
  if (spec_.top_k == 0) return;
  indexer_.emplace(spec_, rope_, kernels, limits, most_threads,
                   (spec_.heads + 1) * spec_.row_width(), layout_.block_bytes());
  choosing_.reserve(static_cast<size_t>(limits.max_batch_tokens));
}

const LatentWeights& Latent::Weights(int64_t layer) const {
  return std::get<LatentWeights>(weights_.layers[static_cast<size_t>(layer)].mixer);
}

std::byte* Latent::Block(int64_t layer, int32_t block) {
  CHECK_LT(block, limits_.num_kv_blocks);
  const auto place = static_cast<size_t>(groups_.index[static_cast<size_t>(layer)]);
  return cache_.data() + slabs_.Offset(block, place_begins_[place], place_bytes_[place]);
}

std::optional<KvMemory::Layer> Latent::KvOf(int64_t layer) {
  const auto place = static_cast<size_t>(groups_.index[static_cast<size_t>(layer)]);
  return KvMemory::Layer{.blocks = Block(layer, 0),
                         .block_bytes = place_bytes_[place],
                         .group = groups_.of_layer[static_cast<size_t>(layer)],
                         .slabs = slabs_};
}

void Latent::GiveBackKv(int64_t first_block) {
  const uint64_t first = slabs_.Bytes(first_block);
  cache_.GiveBack(first, cache_.bytes() - first);
}

HostMixer::CarriedRows Latent::carried() {
  if (!indexer_ || !indexer_->chooses()) return {};
  return {.rows = indexer_->choices(), .row_bytes = carried_bytes_};
}

void Latent::Rotate(int64_t position, float* x) const {
  kernels_.rope(x, rope_.cos(position), rope_.sin(position), rope_.half());
}

void Latent::Begin(const ForwardBatch& batch) {
  pass_.Begin(batch);
  listed_ = {};
}

void Latent::ForHeads(RowRange rows, ThreadPool& pool,
                      FunctionRef<void(RowRange piece, int64_t head, int worker)> body) const {
  CHECK_LE(pool.threads(), most_threads_);  // whose scratch they use
  const int64_t pieces = (rows.count() + kPieceRows - 1) / kPieceRows;
  pool.ParallelFor(pieces * spec_.heads, [&](int64_t task, int worker) {
    const int64_t begin = rows.begin + task / spec_.heads * kPieceRows;
    body({begin, std::min(rows.end, begin + kPieceRows)}, task % spec_.heads, worker);
  });
}

void Latent::Multiply(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t rows,
                      float* y, int64_t y_stride, int worker) {
  const ActivationType type = ActivationTypeOf(kernels_.numerics, w.type);
  const int64_t row_bytes = ActivationRowBytes(type, w.k);
  std::byte* const rounded = product_scratch_.data() + worker * ProductScratchBytes(spec_) +
                             kPieceRows * QueryFloats(spec_) * static_cast<int64_t>(sizeof(float));
  kernels_.prepare_activations(x, x_stride, rows, w.k, type, rounded, row_bytes);
  MatmulArgs product;
  product.x = rounded;
  product.x_stride_bytes = row_bytes;
  product.m = rows;
  product.w = w;
  product.panel_end = w.panels();
  product.y = y;
  product.y_stride = y_stride;
  kernels_.ProductsFor(w.type, rows).matmul(product);
}

void Latent::PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                          const Rows& at, ThreadPool& pool) {
  const LatentWeights& w = Weights(layer);
  const auto eps = static_cast<float>(spec_.norm.eps);
  const int64_t latent = spec_.heads * spec_.row_width();
  ActivatedRows x = activations_.Of(normed, stride, rows.count(), w.down, pool);
  MultiplyRows(pool, kernels_, x, rows.count(), w.down,
               at.projected + rows.begin * at.projected_stride + latent, at.projected_stride);
  const int64_t query_stride = PaddedFloats(spec_.q_rank);
  float* const queries = queries_.as<float>() + rows.begin * query_stride;
  if (spec_.q_rank > 0) {
    MultiplyRows(pool, kernels_, x, rows.count(), w.query_down, queries, query_stride);
  }
  if (HasIndexer(layer)) indexer_->MakeKeys(w.indexer, rows, normed, stride, x, pass_, at, pool);
  ForRows(pool, rows, [&](int64_t row) {
    float* const c = at.projected + row * at.projected_stride + latent;
    kernels_.rms_norm(c, w.norm, eps, spec_.kv_rank, c);
    Rotate(pass_.PositionOf(row), c + spec_.kv_rank);
    if (spec_.q_rank == 0) return;
    float* const query = queries + (row - rows.begin) * query_stride;
    kernels_.rms_norm(query, w.query_norm, eps, spec_.q_rank, query);
  });
  if (spec_.q_rank > 0) x = activations_.Of(queries, query_stride, rows.count(), w.query, pool);
  if (HasIndexer(layer)) indexer_->MakeQueries(w.indexer, rows, x, pass_, at, pool);
  MakeQueries(w, x, rows, at, pool);
}

// A head's query, of which what is not rotated is multiplied with what makes its keys.
void Latent::MakeQueries(const LatentWeights& w, const ActivatedRows& x, RowRange rows,
                         const Rows& at, ThreadPool& pool) {
  const int64_t width = QueryFloats(spec_);
  ForHeads(rows, pool, [&](RowRange piece, int64_t head, int worker) {
    const int64_t first_panel = head * spec_.query_dim() / kPanelOutputs;
    const int64_t first_output = first_panel * kPanelOutputs;
    const int64_t end_output = (head + 1) * spec_.query_dim();
    auto* const out =
        reinterpret_cast<float*>(product_scratch_.data() + worker * ProductScratchBytes(spec_));
    MatmulArgs product;
    product.x = x.data + (piece.begin - rows.begin) * x.stride_bytes;
    product.x_stride_bytes = x.stride_bytes;
    product.m = piece.count();
    product.w = w.query.From(first_panel, end_output - first_output);
    product.panel_end = product.w.panels();
    product.y = out;
    product.y_stride = width;
    kernels_.ProductsFor(w.query.type, product.m).matmul(product);
    const float* const query = out + head * spec_.query_dim() - first_output;
    float* const absorbed =
        at.projected + piece.begin * at.projected_stride + head * spec_.row_width();
    Multiply(w.KeysOf(spec_, head), query, width, piece.count(), absorbed, at.projected_stride,
             worker);
    for (int64_t i = 0; i < piece.count(); ++i) {
      float* const rotated = absorbed + i * at.projected_stride + spec_.kv_rank;
      std::copy_n(query + i * width + spec_.nope_dim, spec_.rope_dim, rotated);
      Rotate(pass_.PositionOf(piece.begin + i), rotated);
    }
  });
}

void Latent::Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) {
  CHECK_LE(pool.threads(), most_threads_);  // whose scratch it uses
  CHECK(!at.by_device);
  at_ = at;
  pass_.Locate(slices, groups_.of_layer[static_cast<size_t>(layer)],
               [&](int32_t block) { return Block(layer, block); });
  StoreRows(layer, RowsOf(pass_.batch(), slices), pool);
  if (slices.begin != listed_.begin || slices.end != listed_.end) ListTasks(slices, pool);
  if (!choosing_.empty()) {
    if (HasIndexer(layer)) indexer_->Choose(choosing_, pass_, at, pool);
    AttendChosen(pool);
  }
  if (tasks_.empty()) return;
  if (split_) return AttendSplit(pool);
  pool.ParallelFor(std::ssize(tasks_), [&](int64_t task, int worker) {
    AttendTask(tasks_[static_cast<size_t>(task)], worker);
  });
}

void Latent::StoreRows(int64_t layer, RowRange rows, ThreadPool& pool) {
  const size_t group = groups_.of_layer[static_cast<size_t>(layer)];
  const bool indexed = HasIndexer(layer);
  ForRows(pool, rows, [&](int64_t row) {
    const int64_t position = pass_.PositionOf(row);
    const float* const of_token =
        at_.projected + row * at_.projected_stride + spec_.heads * spec_.row_width();
    std::byte* const block = Block(layer, pass_.BlockAt(row, group, position));
    kernels_.store_kv(layout_, block, 0, position % kKvBlockTokens, of_token, nullptr);
    if (indexed) indexer_->StoreKey(row, position, at_, block);
  });
}

// Heads of a row, and rows of a prompt, share what is turned out of the cache; a task is as large
// as that pays, but not so large that threads are left without work.
void Latent::ListTasks(SliceRange slices, ThreadPool& pool) {
  choosing_.clear();
  // Of a slice those rows that see all positions before them are the first.
  const auto seeing_all = [&](const SequenceSlice& slice) {
    if (!indexer_ || !indexer_->chooses()) return slice.num_tokens;
    return std::clamp<int64_t>(spec_.top_k - slice.start_position, 0, slice.num_tokens);
  };
  int64_t rows_of_all = 0;
  for (int64_t s = slices.begin; s < slices.end; ++s) {
    const SequenceSlice& slice = pass_.batch().slices[static_cast<size_t>(s)];
    const int64_t all = seeing_all(slice);
    rows_of_all += all;
    for (int64_t row = all; row < slice.num_tokens; ++row) {
      choosing_.push_back(slice.first_row + row);
    }
  }
  const int64_t queries = rows_of_all * spec_.heads;
  split_ = queries <= SplitQueries(spec_, pool.threads());
  const int64_t wanted = kSplitItemsPerThread * pool.threads();
  const int64_t most =
      split_ ? kFewestQueries : std::clamp(queries / wanted, kFewestQueries, kMostQueries);
  const int64_t parts = (spec_.heads + most - 1) / most;
  const int64_t heads = (spec_.heads + parts - 1) / parts;
  const int64_t rows = split_ ? 1 : std::max<int64_t>(1, most / heads);
  tasks_.clear();
  for (int64_t s = slices.begin; s < slices.end; ++s) {
    const SequenceSlice& slice = pass_.batch().slices[static_cast<size_t>(s)];
    const int64_t all = seeing_all(slice);
    for (int64_t row = 0; row < all; row += rows) {
      for (int64_t head = 0; head < spec_.heads; head += heads) {
        tasks_.push_back({slice.first_row + row, std::min(rows, all - row), head,
                          std::min(heads, spec_.heads - head)});
      }
    }
  }
  listed_ = slices;
}

AttendArgs Latent::ArgsFor(const Task& task) const {
  AttendArgs args;
  args.q = at_.projected + task.first_row * at_.projected_stride + task.head * spec_.row_width();
  args.q_stride = spec_.row_width();
  args.q_row_stride = at_.projected_stride;
  args.rows = task.rows;
  args.group = task.heads;
  args.scale = static_cast<float>(spec_.scale);
  args.layout = layout_;
  args.blocks = pass_.Of(task.first_row);
  args.context_end = pass_.PositionOf(task.first_row) + 1;
  return args;
}

void Latent::Finish(const Task& task, const float* totals) {
  const int64_t slot = MixedSlot(spec_);
  for (int64_t row = 0; row < task.rows; ++row) {
    kernels_.finish_attention(
        totals + row * task.heads * PartialFloats(spec_), task.heads, spec_.kv_rank,
        at_.mixed + (task.first_row + row) * at_.mixed_stride + task.head * slot, slot);
  }
}

void Latent::FinishSplit(const Task& task, int64_t chunks, float* partials) {
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    kernels_.fold_partials(partials + chunk * task.heads * PartialFloats(spec_), task.heads,
                           spec_.kv_rank, partials);
  }
  Finish(task, partials);
}

float* Latent::Totals(int worker) {
  return attend_scratch_.as<float>() + worker * AttendScratchFloats(spec_, limits_.kv_type);
}
float* Latent::KernelScratch(int worker) { return Totals(worker) + TotalFloats(spec_); }
std::byte* Latent::GatherScratch(int worker) {
  const auto behind =
      reinterpret_cast<uintptr_t>(KernelScratch(worker) + AttentionScratchFloats(layout_));
  return reinterpret_cast<std::byte*>((behind + 63) / 64 * 64);
}

void Latent::AttendTask(const Task& task, int worker) {
  const AttendArgs args = ArgsFor(task);
  float* const totals = Totals(worker);
  std::fill_n(totals, task.rows * task.heads * PartialFloats(spec_), 0.0f);
  kernels_.attend_chunks(args, 0, ChunksOf(args), totals, 0, KernelScratch(worker));
  Finish(task, totals);
}

// Few queries: runs of chunks of one context go to several threads. The same chunks folded in the
// same order as in AttendTask, so the same bits.
void Latent::AttendSplit(ThreadPool& pool) {
  const int64_t tasks = std::ssize(tasks_);
  const int64_t parts = (kSplitItemsPerThread * pool.threads() + tasks - 1) / tasks;
  const int64_t first_row = tasks_.front().first_row;
  // Of a task: [chunks, heads, partial].
  const auto partials_of = [&](const Task& task) {
    return split_partials_.as<float>() + ((task.first_row - first_row) * spec_.heads + task.head) *
                                             MostChunks(spec_, limits_) * PartialFloats(spec_);
  };
  pool.ParallelFor(tasks * parts, [&](int64_t part, int worker) {
    const Task& task = tasks_[static_cast<size_t>(part / parts)];
    const AttendArgs args = ArgsFor(task);
    const int64_t count = ChunksOf(args);
    const int64_t begin = count * (part % parts) / parts;
    const int64_t end = count * (part % parts + 1) / parts;
    const int64_t stride = task.heads * PartialFloats(spec_);
    float* const partials = partials_of(task) + begin * stride;
    std::fill_n(partials, (end - begin) * stride, 0.0f);
    kernels_.attend_chunks(args, begin, end, partials, stride, KernelScratch(worker));
  });
  pool.ParallelFor(tasks, [&](int64_t index, int) {
    const Task& task = tasks_[static_cast<size_t>(index)];
    FinishSplit(task, ChunksOf(ArgsFor(task)), partials_of(task));
  });
}

// Of a row's heads the chosen positions from this chunk's first on, onto partials.
void Latent::AttendChosenChunk(const Task& task, int64_t chunk, float* partials, int worker) {
  const int64_t first = chunk * kAttentionChunkTokens;
  GatherKeysArgs gather;
  gather.layout = layout_;
  gather.blocks = pass_.Of(task.first_row);
  gather.positions = indexer_->Of(task.first_row) + first;
  gather.count = std::min(kAttentionChunkTokens, spec_.top_k - first);
  gather.out = GatherScratch(worker);
  kernels_.gather_keys(gather);
  std::array<const std::byte*, kAttentionChunkTokens / kKvBlockTokens> blocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = gather.out + static_cast<int64_t>(i) * layout_.block_bytes();
  }
  AttendArgs args = ArgsFor(task);
  args.blocks = blocks.data();
  args.context_end = gather.count;
  kernels_.attend_chunks(args, 0, 1, partials, 0, KernelScratch(worker));
}

// The heads of a row share what is gathered, so few of them are a task only where threads would be
// left without work; then, too, chunks go to several threads. Chunks are folded in the same order
// in any case, so the bits are the same.
void Latent::AttendChosen(ThreadPool& pool) {
  const auto rows = static_cast<int64_t>(choosing_.size());
  const int64_t chunks = ChosenChunks(spec_);
  const bool split = rows * spec_.heads <= SplitQueries(spec_, pool.threads());
  const int64_t items = rows * (split ? chunks : 1);
  const int64_t wanted = kSplitItemsPerThread * pool.threads();
  const int64_t most_parts = (spec_.heads + kFewestQueries - 1) / kFewestQueries;
  const int64_t least_parts = (spec_.heads + kMostChosenHeads - 1) / kMostChosenHeads;
  const int64_t parts = std::clamp((wanted + items - 1) / items, least_parts, most_parts);
  const int64_t heads = (spec_.heads + parts - 1) / parts;
  const auto task_of = [&](int64_t i) {
    const int64_t head = i % parts * heads;
    return Task{choosing_[static_cast<size_t>(i / parts)], 1, head,
                std::min(heads, spec_.heads - head)};
  };
  if (!split) {
    pool.ParallelFor(rows * parts, [&](int64_t i, int worker) {
      const Task task = task_of(i);
      if (task.heads <= 0) return;
      float* const totals = Totals(worker);
      std::fill_n(totals, task.heads * PartialFloats(spec_), 0.0f);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        AttendChosenChunk(task, chunk, totals, worker);
      }
      Finish(task, totals);
    });
    return;
  }
  // Of a task: [chunks, heads, partial].
  const auto partials_of = [&](int64_t i, const Task& task) {
    return split_partials_.as<float>() +
           (i / parts * spec_.heads + task.head) * chunks * PartialFloats(spec_);
  };
  pool.ParallelFor(rows * parts * chunks, [&](int64_t item, int worker) {
    const Task task = task_of(item / chunks);
    if (task.heads <= 0) return;
    const int64_t chunk = item % chunks;
    const int64_t floats = task.heads * PartialFloats(spec_);
    float* const partials = partials_of(item / chunks, task) + chunk * floats;
    std::fill_n(partials, floats, 0.0f);
    AttendChosenChunk(task, chunk, partials, worker);
  });
  pool.ParallelFor(rows * parts, [&](int64_t i, int) {
    const Task task = task_of(i);
    if (task.heads <= 0) return;
    FinishSplit(task, chunks, partials_of(i, task));
  });
}

void Latent::Project(int64_t layer, RowRange rows, const Rows& at, float* y, ThreadPool& pool) {
  const LatentWeights& w = Weights(layer);
  const int64_t slot = MixedSlot(spec_);
  float* const mixed = at.mixed + rows.begin * at.mixed_stride;
  // A head's values in the place of what they are made of,
  ForHeads(rows, pool, [&](RowRange piece, int64_t head, int worker) {
    float* const x = at.mixed + piece.begin * at.mixed_stride + head * slot;
    Multiply(w.ValuesOf(spec_, head), x, at.mixed_stride, piece.count(), x, at.mixed_stride,
             worker);
  });
  // and then one behind the other.
  const int64_t width = spec_.output_width();
  ForRows(pool, rows, [&](int64_t row) {
    float* const x = at.mixed + row * at.mixed_stride;
    for (int64_t head = 1; head < spec_.heads; ++head) {
      std::copy_n(x + head * slot, spec_.value_dim, x + head * spec_.value_dim);
    }
    std::fill(x + width, x + PaddedFloats(width), 0.0f);
  });
  const ActivatedRows x = activations_.Of(mixed, at.mixed_stride, rows.count(), w.output, pool);
  MultiplyRows(pool, kernels_, x, rows.count(), w.output, y, w.output.n);
}

}  // namespace moesaic
