// What is made of a GGUF file's metadata: the model's configuration, and its tokenizer, which must
// encode and decode whatever they say.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/gguf_config.h"
#include "core/io/gguf.h"
#include "serving/text/gguf_tokenizer.h"
#include "serving/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kDataBytes = 1 << 16;  // behind the header, so that tensors may be there
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    std::memset(to.data(), 0, to.size());
    if (offset < size) {
      std::memcpy(to.data(), data + offset, std::min<uint64_t>(to.size(), size - offset));
    }
    return to.size();
  };
  moesaic::GgufHeader header;
  try {
    header = moesaic::ParseGgufHeader(read, size + kDataBytes, "fuzz.gguf");
  } catch (const moesaic::Error&) {
    return 0;
  }
  const auto expect_of_input = [](const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kUnsupported ||
          error.kind() == moesaic::ErrorKind::kNotFound);
  };
  try {
    const moesaic::ModelConfig model = moesaic::ParseGgufConfig(header, "fuzz.gguf");
    CHECK_GT(model.num_layers(), 0);
    model.tensors.At(moesaic::TensorSlot::kEmbedding);
  } catch (const moesaic::Error& error) {
    expect_of_input(error);
  }
  try {
    const auto tokenizer =
        moesaic::LoadGgufTokenizer(moesaic::JsonFields(header.metadata, "fuzz.gguf"));
    const auto ids = tokenizer->Encode("ab \xF0\x9F\x98\x80 <s>12", {});
    for (const int32_t id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size());
    CHECK(moesaic::IsValidUtf8(tokenizer->Decode(ids, false)));
  } catch (const moesaic::Error& error) {
    if (error.kind() != moesaic::ErrorKind::kInvalidArgument) expect_of_input(error);
  }
  return 0;
}
