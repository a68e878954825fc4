#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "tests/gpu/interpreter/block.h"
#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/warp.h"

namespace moesaic::ptx {
namespace {

uint64_t AddressOf(const Warp& warp, const Instruction& instruction, int lane) {
  return warp.Raw(instruction.from[0], lane) + static_cast<uint64_t>(instruction.displacement);
}

// A register that is wider than what is loaded gets it extended, by its sign if it has one.
template <typename T>
void Load(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t bytes = sizeof(T) * instruction.vector;
  ForLanes(lanes, [&](int lane) {
    const std::byte* at = warp.block().Access(warp, instruction, lane,
                                              AddressOf(warp, instruction, lane), bytes, false);
    for (int i = 0; i < instruction.vector; ++i, at += sizeof(T)) {
      T value;
      std::memcpy(&value, at, sizeof(T));
      uint64_t bits = static_cast<std::make_unsigned_t<T>>(value);
      if (std::is_signed_v<T>) bits = static_cast<uint64_t>(static_cast<int64_t>(value));
      warp.SetRaw(instruction.to[i], lane, bits);
    }
  });
}

// Of a register that is wider, its low part is stored.
template <typename T>
void Store(Warp& warp, const Instruction& instruction, uint32_t lanes) {
  const uint32_t bytes = sizeof(T) * instruction.vector;
  ForLanes(lanes, [&](int lane) {
    std::byte* at = warp.block().Access(warp, instruction, lane, AddressOf(warp, instruction, lane),
                                        bytes, true);
    for (int i = 0; i < instruction.vector; ++i, at += sizeof(T)) {
      const auto value = static_cast<T>(warp.Raw(instruction.from[1 + i], lane));
      std::memcpy(at, &value, sizeof(T));
    }
  });
}

template <typename T>
void AddType(Forms& forms, const std::string& type) {
  struct Vector {
    const char* name;
    const char* load_shape;
    const char* store_shape;
  };
  constexpr Vector kVectors[] = {
      {"", "*:a", ":a*"}, {".v2", "**:a", ":a**"}, {".v4", "****:a", ":a****"}};
  constexpr std::pair<const char*, Space> kSpaces[] = {{"", Space::kGeneric},
                                                       {".global", Space::kGlobal},
                                                       {".shared", Space::kShared},
                                                       {".local", Space::kLocal},
                                                       {".param", Space::kParameter}};
  for (const Vector& vector : kVectors) {
    for (const auto& [name, space] : kSpaces) {
      const std::string rest = std::string(name) + vector.name + "." + type;
      forms["ld" + rest] = {vector.load_shape, Load<T>, Flow::kNext, space};
      if (space == Space::kGlobal) {
        forms["ld.global.nc" + std::string(vector.name) + "." + type] = {vector.load_shape, Load<T>,
                                                                         Flow::kNext, space};
      }
      if (space == Space::kParameter) continue;
      forms["st" + rest] = {vector.store_shape, Store<T>, Flow::kNext, space};
    }
  }
  // Those that others may access meanwhile.
  forms["ld.volatile.global." + type] = {"*:a", Load<T>, Flow::kNext, Space::kGlobal, true};
  forms["st.volatile.global." + type] = {":a*", Store<T>, Flow::kNext, Space::kGlobal, true};
}

}  // namespace

// No vector is longer than 16 bytes: the machine has none.
void AddMemoryForms(Forms& forms) {
  AddType<uint8_t>(forms, "u8");
  AddType<uint16_t>(forms, "u16");
  AddType<uint32_t>(forms, "u32");
  AddType<uint64_t>(forms, "u64");
  AddType<int32_t>(forms, "s32");
  AddType<uint32_t>(forms, "f32");
  std::erase_if(forms,
                [](const auto& form) { return form.first.find(".v4.u64") != std::string::npos; });
}

}  // namespace moesaic::ptx
