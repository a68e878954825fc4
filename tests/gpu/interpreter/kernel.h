// A kernel of a PTX module, ready to be run: its instructions decoded, its registers, constants and
// memory laid out. Made by the parser (parser.h), run by Launch (launch.h); immutable in between,
// so any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::ptx {

class Warp;
struct Instruction;

inline constexpr int kLanes = 32;  // of a warp

// Carries out an instruction for the lanes of a warp whose bits are set.
using Execute = void (*)(Warp& warp, const Instruction& instruction, uint32_t lanes);

// What an instruction does to the course of its lanes.
enum class Flow : uint8_t {
  kNext,     // nothing
  kBranch,   // they go on at `target`
  kExit,     // they end
  kWarp,     // they wait until all lanes of the warp are there
  kBarrier,  // they wait until all threads of the block are there
};

enum class Space : uint8_t { kNone, kGeneric, kGlobal, kShared, kLocal, kParameter };

// Where the 32 values of an operand lie side by side, in the registers of a warp or, the same for
// all warps, in the constants of the kernel. A predicate is one word with a bit for each lane.
struct Operand {
  uint32_t offset = 0;
  bool constant = false;
  uint8_t lane_bytes = 0;  // 4 or 8; 0: a predicate
};

struct Instruction {
  static constexpr int kMostTargets = 4;
  static constexpr int kMostSources = 10;  // mma: four, two and four

  Execute execute = nullptr;
  Flow flow = Flow::kNext;
  Space space = Space::kNone;
  bool is_volatile = false;
  bool guarded = false;  // by `guard`, or by its opposite
  bool guard_negated = false;
  uint8_t vector = 1;  // elements of a load or store
  uint8_t targets = 0;
  uint8_t sources = 0;
  Operand guard;
  Operand to[kMostTargets];
  Operand from[kMostSources];  // of a load or store the address comes first
  int64_t displacement = 0;    // of that address
  uint32_t target = 0;         // of a branch: an index of `code`
};

struct Parameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// A register that says which thread this is. `axis` is 0 to 2 for x, y and z.
struct SpecialRegister {
  enum class Kind : uint8_t { kThread, kBlockSize, kBlock, kGridSize, kLane };
  Kind kind = Kind::kThread;
  int axis = 0;
  Operand reg;
};

struct SourceLine {
  int line = 0;
  std::string text;
};

struct Kernel {
  std::string name;  // mangled
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t shared_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t register_bytes = 0;  // of a warp
  uint32_t most_threads = 0;    // of a block (.maxntid); 0: it does not say
  std::vector<std::byte> constants;
  std::vector<SpecialRegister> special_registers;
  std::vector<Instruction> code;
  std::vector<SourceLine> source;  // of each instruction, for messages
};

}  // namespace moesaic::ptx
