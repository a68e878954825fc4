// Files of learned state: the file, and past its checksum the sections.
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "kernels/cpu/kernels.h"
#include "tracer/eam_collection_section.h"
#include "tracer/residency_list.h"
#include "tracer/state_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  if (size == 0) return 0;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    if (data[0] % 3 == 0) {
      ParseState(bytes, "fuzz");
    } else if (data[0] % 3 == 1) {
      static EamCollection collection(3, 8, 4, KernelsFor(Isa::kScalar));
      EamCollectionSection(collection).Load(1, bytes);
    } else {
      ResidencyList list;
      ResidencyListSection(list, 100, 100).Load(1, bytes);
    }
  } catch (const Error&) {
  }
  return 0;
}
