#include "core/io/expert_store_json.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr uint64_t kVersion = 2;  // 2: 128 inputs share a scale of integer weights
constexpr uint64_t kMostDim = 1 << 24;
constexpr uint64_t kMostSlotBytes = uint64_t{1} << 40;
constexpr uint64_t kMostSections = 64;

constexpr std::pair<SectionFormat, const char*> kFormats[] = {
    {SectionFormat::kRowMajor, "row_major"},
    {SectionFormat::kPanel16, "panel16"},
};
constexpr DType kDTypes[] = {DType::kF32,    DType::kF16, DType::kBF16, DType::kI8, DType::kI4,
                             DType::kF8E4M3, DType::kI32, DType::kI64,  DType::kU8, DType::kBool};

// Checked access to the keys of an object of the file.
class Reader {
 public:
  Reader(const json& object, std::string_view file) : object_(object), file_(file) {
    if (!object.is_object()) Fail(ErrorKind::kCorrupt, "{}: expected an object", file_);
  }
  const json& At(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) Fail(ErrorKind::kCorrupt, "{}: {} is missing", file_, key);
    return *it;
  }
  uint64_t Int(const char* key, uint64_t least, uint64_t most) const {
    return CheckInt(At(key), key, least, most);
  }
  uint64_t CheckInt(const json& value, const char* key, uint64_t least, uint64_t most) const {
    const uint64_t number = value.is_number_unsigned() ? value.get<uint64_t>() : UINT64_MAX;
    if (!value.is_number_unsigned() || number < least || number > most) {
      Fail(ErrorKind::kCorrupt, "{}: {}: expected an integer from {} to {}", file_, key, least,
           most);
    }
    return number;
  }
  std::string String(const char* key) const {
    const json& value = At(key);
    if (!value.is_string()) Fail(ErrorKind::kCorrupt, "{}: {}: expected a string", file_, key);
    return value.get<std::string>();
  }
  const json& Array(const char* key, size_t most) const {
    const json& value = At(key);
    if (!value.is_array() || value.size() > most) {
      Fail(ErrorKind::kCorrupt, "{}: {}: expected a list of at most {} items", file_, key, most);
    }
    return value;
  }
  // 64 bits as 16 hexadecimal digits: JSON numbers are doubles to many programs.
  uint64_t Hex(const json& value, const char* key) const {
    uint64_t number = 0;
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
      if (text.size() == 16 && error == std::errc() && end == text.data() + text.size()) {
        return number;
      }
    }
    Fail(ErrorKind::kCorrupt, "{}: {}: expected 16 hexadecimal digits", file_, key);
  }

 private:
  const json& object_;
  std::string_view file_;
};

ExpertSection ParseSection(const json& value, std::string_view file) {
  const Reader reader(value, file);
  ExpertSection section;
  section.name = reader.String("name");
  const std::string dtype = reader.String("dtype");
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](DType type) { return dtype == DTypeName(type); });
  if (known == std::end(kDTypes)) {
    Fail(ErrorKind::kCorrupt, "{}: section {:.80}: unknown dtype", file, section.name);
  }
  section.dtype = *known;
  const std::string format = reader.String("format");
  const auto* known_format =
      std::find_if(std::begin(kFormats), std::end(kFormats),
                   [&](const auto& entry) { return format == entry.second; });
  if (known_format == std::end(kFormats)) {
    Fail(ErrorKind::kCorrupt, "{}: section {:.80}: unknown format", file, section.name);
  }
  section.format = known_format->first;
  section.rows = static_cast<int64_t>(reader.Int("rows", 1, kMostDim));
  section.cols = static_cast<int64_t>(reader.Int("cols", 1, kMostDim));
  section.offset = reader.Int("offset", 0, kMostSlotBytes);
  section.bytes = reader.Int("bytes", 1, kMostSlotBytes);
  const uint64_t needed =
      (static_cast<uint64_t>(section.rows) * static_cast<uint64_t>(section.cols) *
           static_cast<uint64_t>(DTypeBits(section.dtype)) +
       7) /
      8;
  if (section.bytes < needed || section.offset % 64 != 0) {
    Fail(ErrorKind::kCorrupt,
         "{}: section {:.80}: {} bytes at offset {}, expected at least {} at a multiple of 64",
         file, section.name, section.bytes, section.offset, needed);
  }
  return section;
}

ExpertLayout ParseLayout(const json& value, std::string_view file) {
  const Reader reader(value, file);
  ExpertLayout layout;
  layout.blob_bytes = reader.Int("blob_bytes", 1, kMostSlotBytes);
  layout.slot_bytes = reader.Int("slot_bytes", 1, kMostSlotBytes);
  if (layout.slot_bytes != RoundUp(layout.blob_bytes, AlignedBuffer::kPageBytes)) {
    Fail(ErrorKind::kCorrupt, "{}: slot_bytes is {}, expected blob_bytes, {}, rounded up to 4096",
         file, layout.slot_bytes, layout.blob_bytes);
  }
  uint64_t end = 0;  // sections follow each other, so that they cannot overlap
  for (const json& item : reader.Array("sections", kMostSections)) {
    ExpertSection section = ParseSection(item, file);
    if (section.offset < end || section.offset + section.bytes > layout.blob_bytes) {
      Fail(ErrorKind::kCorrupt,
           "{}: section {:.80}: bytes {} to {}, expected inside the blob's {} and after the "
           "section before",
           file, section.name, section.offset, section.offset + section.bytes, layout.blob_bytes);
    }
    end = section.offset + section.bytes;
    layout.sections.push_back(std::move(section));
  }
  return layout;
}

std::string Hex(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace

uint64_t ExpertStoreCount(const ExpertStoreHeader& header) {
  return CheckedMul(header.sparse_layers.size(), static_cast<uint64_t>(header.num_experts),
                    "expert store: number of experts");
}

uint64_t ExpertStoreBytes(const ExpertStoreHeader& header) {
  return CheckedMul(ExpertStoreCount(header), header.layout.slot_bytes, "expert store: size");
}

std::string FormatExpertStoreJson(const ExpertStoreDescription& store) {
  const ExpertStoreHeader& header = store.header;
  json sections = json::array();
  for (const ExpertSection& section : header.layout.sections) {
    const auto* format =
        std::find_if(std::begin(kFormats), std::end(kFormats),
                     [&](const auto& entry) { return entry.first == section.format; });
    CHECK(format != std::end(kFormats));
    sections.push_back({{"name", section.name},
                        {"dtype", DTypeName(section.dtype)},
                        {"format", format->second},
                        {"rows", section.rows},
                        {"cols", section.cols},
                        {"offset", section.offset},
                        {"bytes", section.bytes}});
  }
  json checksums = json::array();
  for (const uint64_t checksum : store.checksums) checksums.push_back(Hex(checksum));
  const json document = {{"version", kVersion},
                         {"source_fingerprint", Hex(header.source_fingerprint)},
                         {"model_type", header.model_type},
                         {"layout",
                          {{"blob_bytes", header.layout.blob_bytes},
                           {"slot_bytes", header.layout.slot_bytes},
                           {"sections", sections}}},
                         {"sparse_layers", header.sparse_layers},
                         {"num_experts", header.num_experts},
                         {"checksums", checksums}};
  return document.dump(1) + "\n";
}

ExpertStoreDescription ParseExpertStoreJson(std::string_view text, std::string_view name) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {
    Fail(ErrorKind::kCorrupt, "{}: is not valid JSON: {:.300}", name, error.what());
  }
  const Reader reader(document, name);
  const uint64_t version = reader.Int("version", 0, UINT32_MAX);
  if (version != kVersion) {
    Fail(ErrorKind::kCorrupt,
         "{}: format version {}, expected {}; write the store again with `moesaic pack`", name,
         version, kVersion);
  }
  ExpertStoreDescription store;
  ExpertStoreHeader& header = store.header;
  header.source_fingerprint = reader.Hex(reader.At("source_fingerprint"), "source_fingerprint");
  header.model_type = reader.String("model_type");
  header.layout = ParseLayout(reader.At("layout"), name);
  header.num_experts = static_cast<int32_t>(reader.Int("num_experts", 1, UINT16_MAX));
  for (const json& item : reader.Array("sparse_layers", UINT16_MAX)) {
    const auto layer = static_cast<int32_t>(reader.CheckInt(item, "sparse_layers", 0, UINT16_MAX));
    if (!header.sparse_layers.empty() && layer <= header.sparse_layers.back()) {
      Fail(ErrorKind::kCorrupt, "{}: sparse_layers: expected ascending layer numbers", name);
    }
    header.sparse_layers.push_back(layer);
  }
  if (header.sparse_layers.empty()) {
    Fail(ErrorKind::kCorrupt, "{}: sparse_layers is empty, expected layer numbers", name);
  }
  const uint64_t count = ExpertStoreCount(header);
  const json& checksums = reader.Array("checksums", count);
  if (checksums.size() != count) {
    Fail(ErrorKind::kCorrupt, "{}: checksums: found {}, expected one for each of {} experts", name,
         checksums.size(), count);
  }
  for (const json& item : checksums) store.checksums.push_back(reader.Hex(item, "checksums"));
  return store;
}

}  // namespace moesaic
