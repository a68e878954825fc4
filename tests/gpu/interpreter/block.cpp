#include "tests/gpu/interpreter/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tests/gpu/interpreter/defect.h"

namespace moesaic::ptx {
namespace {

constexpr std::byte kUnwritten{0xff};  // as floats NaN, as indices far out
constexpr uint32_t kNoOthers = std::numeric_limits<uint32_t>::max();

uint32_t Component(const Dim& dim, int axis) {
  return axis == 0 ? dim.x : axis == 1 ? dim.y : dim.z;
}

void SetPlace(Warp& warp, uint32_t lanes, uint32_t pc) {
  ForLanes(lanes, [&](int lane) { warp.pc[lane] = pc; });
}

}  // namespace

Warp::Warp(Block& block, const Kernel& kernel, int first_thread, int threads)
    : block_(&block),
      kernel_(&kernel),
      first_thread_(first_thread),
      storage_(kernel.register_bytes / sizeof(uint64_t) + 1 + 32 / sizeof(uint64_t),
               0xdeadbeefdeadbeef),
      local_(size_t{kernel.local_bytes} * kLanes) {
  const auto begin = reinterpret_cast<uintptr_t>(storage_.data());
  registers_ = reinterpret_cast<std::byte*>((begin + 31) / 32 * 32);
  Restart(threads);
}

void Warp::Restart(int threads) {
  live = threads >= kLanes ? kAllLanes : (1u << threads) - 1;
  at_warp = at_barrier = interval = 0;
  SetPlace(*this, kAllLanes, 0);
  std::fill(local_.begin(), local_.end(), kUnwritten);
}

void Warp::Fail(int lane, const std::string& what, Defect::Kind kind) const {
  const SourceLine& source = kernel_->source[current];
  throw Defect(kind, fmt::format("{}, block {}, thread {}, PTX line {} '{}': {}", kernel_->name,
                                 block_->Name(), thread(lane), source.line, source.text, what));
}

Block::Block(const Kernel& kernel, Dim grid, Dim threads, std::span<const std::byte> parameters,
             const DeviceView& view)
    : kernel_(kernel),
      grid_(grid),
      threads_(threads),
      parameters_(parameters),
      view_(view),
      shared_(kernel.shared_bytes),
      shared_cells_(kernel.shared_bytes),
      recent_(kernel.code.size()) {
  const auto count = static_cast<int>(threads.count());
  warps_.reserve(static_cast<size_t>(count / kLanes + 1));
  for (int first = 0; first < count; first += kLanes) {
    warps_.emplace_back(*this, kernel, first, count - first);
  }
}

std::string Block::Name() const {
  return fmt::format("({}, {}, {})", index_.x, index_.y, index_.z);
}

void Block::FillSpecialRegisters(Warp& warp) {
  using Kind = SpecialRegister::Kind;
  for (const SpecialRegister& special : kernel_.special_registers) {
    uint32_t* const to = warp.To<uint32_t>(special.reg);
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t thread = warp.thread(lane);
      const Dim place = {thread % threads_.x, thread / threads_.x % threads_.y,
                         thread / threads_.x / threads_.y};
      switch (special.kind) {
        case Kind::kThread:
          to[lane] = Component(place, special.axis);
          break;
        case Kind::kBlockSize:
          to[lane] = Component(threads_, special.axis);
          break;
        case Kind::kBlock:
          to[lane] = Component(index_, special.axis);
          break;
        case Kind::kGridSize:
          to[lane] = Component(grid_, special.axis);
          break;
        case Kind::kLane:
          to[lane] = static_cast<uint32_t>(lane);
          break;
      }
    }
  }
}

void Block::Run(Dim index) {
  index_ = index;
  races_.BeginBlock();
  std::fill(shared_.begin(), shared_.end(), kUnwritten);
  for (size_t w = 0; w < warps_.size(); ++w) {
    warps_[w].Restart(static_cast<int>(threads_.count()) - static_cast<int>(w) * kLanes);
    FillSpecialRegisters(warps_[w]);
  }
  do {
    for (Warp& warp : warps_) RunWarp(warp);
  } while (PassBarrier());
}

// Until each lane has ended or waits for the block.
void Block::RunWarp(Warp& warp) {
  for (;;) {
    const uint32_t ready = warp.live & ~warp.at_warp & ~warp.at_barrier;
    if (ready == 0) {
      if (warp.at_warp == 0) return;
      MeetAtWarp(warp);
      continue;
    }
    uint32_t pc = kNoOthers;
    ForLanes(ready, [&](int lane) { pc = std::min(pc, warp.pc[lane]); });
    uint32_t lanes = 0;
    uint32_t others = kNoOthers;
    ForLanes(ready, [&](int lane) {
      if (warp.pc[lane] == pc) {
        lanes |= 1u << lane;
      } else {
        others = std::min(others, warp.pc[lane]);
      }
    });
    RunGroup(warp, lanes, pc, others);
  }
}

// Lanes that are at the same instruction, until they part, wait, or come to where others are.
void Block::RunGroup(Warp& warp, uint32_t lanes, uint32_t pc, uint32_t others) {
  while (pc < others) {
    const Instruction& instruction = kernel_.code[pc];
    warp.current = pc;
    uint32_t active = lanes;
    if (instruction.guarded) {
      const uint32_t guard = warp.FromPredicate(instruction.guard);
      active &= instruction.guard_negated ? ~guard : guard;
    }
    switch (instruction.flow) {
      case Flow::kNext:
        if (active != 0) instruction.execute(warp, instruction, active);
        ++pc;
        break;
      case Flow::kBranch:
        if (active != 0 && active != lanes) {
          SetPlace(warp, active, instruction.target);
          SetPlace(warp, lanes & ~active, pc + 1);
          return;
        }
        pc = active != 0 ? instruction.target : pc + 1;
        break;
      case Flow::kExit:
        warp.live &= ~active;
        lanes &= ~active;
        ++pc;
        break;
      case Flow::kWarp:
        if (active == warp.live) {
          instruction.execute(warp, instruction, active);
        } else {
          SetPlace(warp, active, pc);
          warp.at_warp |= active;
          lanes &= ~active;
        }
        ++pc;
        break;
      case Flow::kBarrier:
        SetPlace(warp, active, pc);
        warp.at_barrier |= active;
        lanes &= ~active;
        ++pc;
        break;
    }
    if (lanes == 0) return;
  }
  SetPlace(warp, lanes, pc);
}

// All lanes that run wait: they must do so at the same instruction.
void Block::MeetAtWarp(Warp& warp) {
  const int first = std::countr_zero(warp.at_warp);
  warp.current = warp.pc[first];
  if (warp.at_warp != warp.live) {
    warp.Fail(first, "an instruction of the whole warp, whose other lanes wait for the block");
  }
  ForLanes(warp.live, [&](int lane) {
    if (warp.pc[lane] == warp.pc[first]) return;
    warp.Fail(first,
              fmt::format("an instruction of the whole warp, but thread {} waits at PTX line "
                          "{}",
                          warp.thread(lane), kernel_.source[warp.pc[lane]].line));
  });
  const Instruction& instruction = kernel_.code[warp.current];
  instruction.execute(warp, instruction, warp.live);
  SetPlace(warp, warp.live, warp.current + 1);
  warp.at_warp = 0;
}

// False: all threads have ended.
bool Block::PassBarrier() {
  const Warp* first = nullptr;
  for (Warp& warp : warps_) {
    if (warp.live == 0) continue;
    if (first == nullptr) {
      first = &warp;
      warp.current = warp.pc[std::countr_zero(warp.live)];
    }
    ForLanes(warp.live, [&](int lane) {
      if (warp.pc[lane] == first->current) return;
      first->Fail(std::countr_zero(first->live),
                  fmt::format("a barrier of the block, but thread {} waits at PTX line {}",
                              warp.thread(lane), kernel_.source[warp.pc[lane]].line));
    });
  }
  if (first == nullptr) return false;
  for (Warp& warp : warps_) {
    warp.at_barrier = 0;
    ForLanes(warp.live, [&](int lane) { ++warp.pc[lane]; });
  }
  races_.Barrier();
  return true;
}

std::byte* Block::Access(Warp& warp, const Instruction& instruction, int lane, uint64_t address,
                         uint32_t bytes, bool write) {
  if ((address & (bytes - 1)) != 0) {
    warp.Fail(lane, fmt::format("address {:#x} is not aligned to {} bytes", address, bytes),
              Defect::Kind::kAlignment);
  }
  const auto check = [&](const char* memory, uint64_t all) {
    if (bytes <= all && address <= all - bytes) return;
    warp.Fail(lane,
              fmt::format("{} bytes at {} of {} memory, which has {}", bytes,
                          static_cast<int64_t>(address), memory, all),
              Defect::Kind::kAddress);
  };
  switch (instruction.space) {
    case Space::kParameter:
      check("parameter", parameters_.size());
      return const_cast<std::byte*>(parameters_.data()) + address;
    case Space::kLocal:
      check("local", kernel_.local_bytes);
      return warp.local(lane) + address;
    case Space::kShared:
      check("shared", shared_.size());
      return AccessShared(warp, lane, address, bytes, write);
    default:
      return AccessGlobal(warp, instruction, lane, address, bytes, write);
  }
}

std::byte* Block::AccessShared(Warp& warp, int lane, uint64_t address, uint32_t bytes, bool write) {
  const RaceCheck::Who who = {warp.thread(lane), warp.interval};
  for (uint64_t at = address; at < address + bytes; ++at) {
    AccessCell& cell = shared_cells_[at];
    if (!write && !races_.WrittenByBlock(cell)) {
      warp.Fail(lane,
                fmt::format("byte {} of shared memory is read, which nobody has written", at));
    }
    if (const auto race = write ? races_.Write(cell, who, true) : races_.Read(cell, who, true)) {
      warp.Fail(lane, fmt::format("byte {} of shared memory: {}", at, *race));
    }
  }
  return shared_.data() + address;
}

std::byte* Block::AccessGlobal(Warp& warp, const Instruction& instruction, int lane,
                               uint64_t address, uint32_t bytes, bool write) {
  const Extent& extent = ExtentOf(warp, lane, address, bytes, write);
  if (!instruction.is_volatile) {
    const RaceCheck::Who who = {warp.thread(lane), warp.interval};
    const uint64_t first = (address - extent.region_begin) / 2;
    for (uint64_t i = first; i < first + (bytes + 1) / 2; ++i) {
      AccessCell& cell = extent.cells[i];
      if (const auto race =
              write ? races_.Write(cell, who, false) : races_.Read(cell, who, false)) {
        warp.Fail(lane, fmt::format("address {:#x}: {}", extent.region_begin + 2 * i, *race));
      }
    }
  }
  return reinterpret_cast<std::byte*>(address);
}

const Extent& Block::ExtentOf(Warp& warp, int lane, uint64_t address, uint32_t bytes, bool write) {
  Recent& recent = recent_[warp.current];
  const uint64_t generation = view_.memory.generation();
  if (recent.generation == generation && recent.extent.Contains(address, bytes)) {
    return recent.extent;
  }
  std::string why_not;
  const std::optional<Extent> found = view_.memory.Find(address, bytes, &why_not);
  if (!found) {
    warp.Fail(lane, fmt::format("{} of {}", write ? "a store" : "a load", why_not),
              Defect::Kind::kAddress);
  }
  if (found->kind == MemoryKind::kPinned) {
    warp.Fail(lane,
              fmt::format("{:#x} is memory of the host that was registered without "
                          "cudaHostRegisterMapped",
                          address),
              Defect::Kind::kAddress);
  }
  if (found->kind == MemoryKind::kDevice && found->device != view_.device &&
      (view_.peers >> found->device & 1) == 0) {
    warp.Fail(lane,
              fmt::format("{:#x} is memory of GPU {}, which is no peer of GPU {}", address,
                          found->device, view_.device),
              Defect::Kind::kAddress);
  }
  recent = {generation, *found};
  return recent.extent;
}

void RunKernel(const Kernel& kernel, Dim grid, Dim threads, std::span<const std::byte> parameters,
               const DeviceView& view) {
  Block block(kernel, grid, threads, parameters, view);
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) block.Run({x, y, z});
    }
  }
}

}  // namespace moesaic::ptx
