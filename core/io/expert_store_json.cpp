#include "core/io/expert_store_json.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/json_fields.h"
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
    {SectionFormat::kBlockPanel16, "block_panel16"},
};
constexpr DType kDTypes[] = {DType::kF32,   DType::kF16,      DType::kBF16,  DType::kI8,
                             DType::kI4,    DType::kF8E4M3,   DType::kI32,   DType::kI64,
                             DType::kU8,    DType::kBool,     DType::kMxfp4, DType::kGguf,
                             DType::kW4A16, DType::kBf16Coded};

uint64_t Size(const JsonFields& fields, std::string_view key, uint64_t least, uint64_t most) {
  return static_cast<uint64_t>(
      fields.At(key).Int(static_cast<int64_t>(least), static_cast<int64_t>(most)));
}

// 64 bits as 16 hexadecimal digits: JSON numbers are doubles to many programs.
uint64_t HexOf(const JsonFields& place) {
  const std::string& text = place.String();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    place.Refuse(fmt::format("is \"{:.80}\", expected 16 hexadecimal digits", text));
  }
  return number;
}

ExpertSection ParseSection(const JsonFields& fields) {
  ExpertSection section;
  section.name = fields.At("name").String();
  const std::string dtype = fields.At("dtype").String();
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](DType type) { return dtype == DTypeName(type); });
  if (known == std::end(kDTypes)) {
    fields.FailAt("dtype", fmt::format("is \"{:.80}\", which is not known", dtype));
  }
  section.dtype = *known;
  const std::string format = fields.At("format").String();
  const auto* known_format =
      std::find_if(std::begin(kFormats), std::end(kFormats),
                   [&](const auto& entry) { return format == entry.second; });
  if (known_format == std::end(kFormats)) {
    fields.FailAt("format", fmt::format("is \"{:.80}\", which is not known", format));
  }
  section.format = known_format->first;
  section.rows = fields.At("rows").Int(1, kMostDim);
  section.cols = fields.At("cols").Int(1, kMostDim);
  section.offset = Size(fields, "offset", 0, kMostSlotBytes);
  section.bytes = Size(fields, "bytes", 1, kMostSlotBytes);
  if (section.dtype == DType::kGguf) {
    for (const JsonFields& item : fields.At("gguf_types").Elements(UINT16_MAX)) {
      section.gguf_types.push_back(static_cast<uint32_t>(item.Int(0, UINT16_MAX)));
    }
  }
  const uint64_t needed =
      (static_cast<uint64_t>(section.rows) * static_cast<uint64_t>(section.cols) *
           static_cast<uint64_t>(DTypeBits(section.dtype)) +
       7) /
      8;
  if (section.bytes < needed || section.offset % 64 != 0) {
    fields.Refuse(
        fmt::format("{:.80} has {} bytes at offset {}, expected at least {} at a multiple of 64",
                    section.name, section.bytes, section.offset, needed));
  }
  return section;
}

ExpertLayout ParseLayout(const JsonFields& fields) {
  ExpertLayout layout;
  layout.blob_bytes = Size(fields, "blob_bytes", 1, kMostSlotBytes);
  layout.slot_bytes = Size(fields, "slot_bytes", 1, kMostSlotBytes);
  if (layout.slot_bytes != RoundUp(layout.blob_bytes, AlignedBuffer::kPageBytes)) {
    fields.FailAt("slot_bytes", fmt::format("is {}, expected blob_bytes, {}, rounded up to 4096",
                                            layout.slot_bytes, layout.blob_bytes));
  }
  uint64_t end = 0;  // sections follow each other, so that they cannot overlap
  for (const JsonFields& item : fields.At("sections").Elements(kMostSections)) {
    ExpertSection section = ParseSection(item);
    if (section.offset < end || section.offset + section.bytes > layout.blob_bytes) {
      item.Refuse(fmt::format(
          "{:.80} has bytes {} to {}, expected inside the blob's {} and after the section before",
          section.name, section.offset, section.offset + section.bytes, layout.blob_bytes));
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
    if (section.dtype == DType::kGguf) sections.back()["gguf_types"] = section.gguf_types;
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
  const json document = ParseJsonObject(text, name);
  const JsonFields fields(document, name);
  const uint64_t version = Size(fields, "version", 0, UINT32_MAX);
  if (version != kVersion) {
    Fail(ErrorKind::kCorrupt,
         "{}: format version {}, expected {}; write the store again with `moesaic pack`", name,
         version, kVersion);
  }
  ExpertStoreDescription store;
  ExpertStoreHeader& header = store.header;
  header.source_fingerprint = HexOf(fields.At("source_fingerprint"));
  header.model_type = fields.At("model_type").String();
  header.layout = ParseLayout(fields.At("layout"));
  header.num_experts = static_cast<int32_t>(Size(fields, "num_experts", 1, UINT16_MAX));
  for (const JsonFields& item : fields.At("sparse_layers").Elements(UINT16_MAX)) {
    const auto layer = static_cast<int32_t>(item.Int(0, UINT16_MAX));
    if (!header.sparse_layers.empty() && layer <= header.sparse_layers.back()) {
      fields.FailAt("sparse_layers", "expected ascending layer numbers");
    }
    header.sparse_layers.push_back(layer);
  }
  if (header.sparse_layers.empty()) {
    fields.FailAt("sparse_layers", "is empty, expected layer numbers");
  }
  const uint64_t count = ExpertStoreCount(header);
  const std::vector<JsonFields> checksums = fields.At("checksums").Elements(count);
  if (checksums.size() != count) {
    fields.FailAt("checksums", fmt::format("found {}, expected one for each of {} experts",
                                           checksums.size(), count));
  }
  for (const JsonFields& item : checksums) store.checksums.push_back(HexOf(item));
  return store;
}

}  // namespace moesaic
