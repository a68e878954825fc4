#include "tracer/state_checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/atomic_file.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/units.h"
#include "tracer/internal/msgpack_bytes.h"
#include "tracer/state_fields.h"

namespace moesaic {
namespace {

constexpr std::string_view kMagic = "moesaic-state";
constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 32;
constexpr size_t kPrefixBytes = 1 + 1 + kMagic.size();  // fixarray of 4, fixstr of 13, its text

// How every state file begins.
std::array<std::byte, kPrefixBytes> Prefix() {
  std::array<std::byte, kPrefixBytes> prefix;
  prefix[0] = std::byte{0x94};
  prefix[1] = std::byte{0xa0 | kMagic.size()};
  for (size_t i = 0; i < kMagic.size(); ++i) prefix[2 + i] = static_cast<std::byte>(kMagic[i]);
  return prefix;
}

[[noreturn]] void FailShape(std::string_view name) {
  Fail(ErrorKind::kCorrupt, "{}: its parts are not those of a state file", name);
}

std::span<const msgpack::object> Elements(const msgpack::object& array, size_t count,
                                          std::string_view name) {
  if (array.type != msgpack::type::ARRAY || array.via.array.size < count) FailShape(name);
  return {array.via.array.ptr, array.via.array.size};
}

void CheckType(const msgpack::object& object, msgpack::type::object_type type,
               std::string_view name) {
  if (object.type != type) FailShape(name);
}

StateFields FieldsOf(const ModelFingerprint& model) {
  StateFields fields;
  fields.SetText("family", model.family);
  fields.SetInt("num_layers", model.num_layers);
  fields.SetInt("moe_layers", model.moe_layers);
  fields.SetInt("num_experts", model.num_experts);
  fields.SetInt("top_k", model.top_k);
  fields.SetInt("hidden_size", model.hidden_size);
  fields.SetInt("moe_intermediate_size", model.moe_intermediate_size);
  fields.SetInt("vocab_size", model.vocab_size);
  return fields;
}

ModelFingerprint FingerprintFrom(const StateFields& fields) {
  constexpr int64_t kMost = int64_t{1} << 40;
  ModelFingerprint model;
  model.family = fields.Text("family");
  model.num_layers = fields.Int("num_layers", 0, kMost);
  model.moe_layers = fields.Int("moe_layers", 0, kMost);
  model.num_experts = fields.Int("num_experts", 0, kMost);
  model.top_k = fields.Int("top_k", 0, kMost);
  model.hidden_size = fields.Int("hidden_size", 0, kMost);
  model.moe_intermediate_size = fields.Int("moe_intermediate_size", 0, kMost);
  model.vocab_size = fields.Int("vocab_size", 0, kMost);
  return model;
}

StoredSection Stored(const StateSection& section) {
  return {std::string(section.name()), section.version(), section.Save()};
}

void PackBinary(MsgpackPacker& packer, std::span<const std::byte> bytes, std::string_view what) {
  const uint32_t length = CheckedMsgpackLength(bytes.size(), what);
  packer.pack_bin(length);
  packer.pack_bin_body(reinterpret_cast<const char*>(bytes.data()), length);
}

}  // namespace

std::vector<std::byte> PackState(StoredState state) {
  constexpr size_t kFrameBytes = 1024;  // more than names and lengths take
  size_t bytes = kFrameBytes;
  for (const StoredSection& section : state.sections) bytes += section.bytes.size() + kFrameBytes;
  MsgpackBytes body;
  body.Reserve(bytes);
  MsgpackPacker body_packer(body);
  body_packer.pack_array(2);
  PackBinary(body_packer, FieldsOf(state.model).Pack(), "model");
  body_packer.pack_array(static_cast<uint32_t>(state.sections.size()));
  for (StoredSection& section : state.sections) {
    body_packer.pack_array(3);
    body_packer.pack(section.name);
    body_packer.pack(section.version);
    PackBinary(body_packer, std::exchange(section.bytes, {}), section.name);
  }
  const std::vector<std::byte> body_bytes = body.Take();

  MsgpackBytes out;
  out.Reserve(body_bytes.size() + kFrameBytes);
  MsgpackPacker packer(out);
  packer.pack_array(4);
  packer.pack(kMagic);
  packer.pack(kFormatVersion);
  packer.pack(Hash64(body_bytes));
  PackBinary(packer, body_bytes, "state");
  return out.Take();
}

StoredState ParseState(std::span<const std::byte> bytes, std::string_view name) {
  const auto prefix = Prefix();
  if (bytes.size() < prefix.size() || !std::equal(prefix.begin(), prefix.end(), bytes.begin())) {
    Fail(ErrorKind::kCorrupt, "{}: not a state file of moesaic", name);
  }
  const MsgpackDocument document(bytes, name);
  const std::span<const msgpack::object> parts = Elements(document.root(), 4, name);
  CheckType(parts[1], msgpack::type::POSITIVE_INTEGER, name);
  if (parts[1].via.u64 != kFormatVersion) {
    Fail(ErrorKind::kUnsupported, "{}: has format version {}, this program reads {}", name,
         parts[1].via.u64, kFormatVersion);
  }
  CheckType(parts[2], msgpack::type::POSITIVE_INTEGER, name);
  CheckType(parts[3], msgpack::type::BIN, name);
  const std::span<const std::byte> body_bytes = MsgpackBinary(parts[3]);
  if (Hash64(body_bytes) != parts[2].via.u64) {
    Fail(ErrorKind::kCorrupt, "{}: its checksum is wrong; the file is damaged", name);
  }
  const MsgpackDocument body(body_bytes, name);
  const std::span<const msgpack::object> halves = Elements(body.root(), 2, name);
  CheckType(halves[0], msgpack::type::BIN, name);
  StoredState state;
  state.model = FingerprintFrom(
      StateFields::Unpack(MsgpackBinary(halves[0]), fmt::format("{}: model", name)));
  for (const msgpack::object& stored : Elements(halves[1], 0, name)) {
    const std::span<const msgpack::object> section = Elements(stored, 3, name);
    CheckType(section[0], msgpack::type::STR, name);
    CheckType(section[1], msgpack::type::POSITIVE_INTEGER, name);
    CheckType(section[2], msgpack::type::BIN, name);
    const std::span<const std::byte> content = MsgpackBinary(section[2]);
    state.sections.push_back({std::string(MsgpackText(section[0])),
                              static_cast<uint32_t>(section[1].via.u64),
                              {content.begin(), content.end()}});
  }
  return state;
}

bool IsStateFile(const std::filesystem::path& file) {
  try {
    std::array<std::byte, kPrefixBytes> start;
    return File(file).ReadAt(0, start) == start.size() && start == Prefix();
  } catch (const Error&) {
    return false;
  }
}

bool CheckStateFile(const std::filesystem::path& file) {
  std::array<std::byte, kPrefixBytes> start;
  size_t bytes = 0;
  try {
    bytes = File(file).ReadAt(0, start);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return false;
    throw;  // what cannot be read may be anybody's
  }
  if (bytes == 0) return false;
  if (bytes < start.size() || start != Prefix()) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: not a state file of moesaic, and not empty; it stays as it is: name another file",
         file.string());
  }
  return true;
}

StoredState ReadStateFile(const std::filesystem::path& file) {
  const File opened(file);
  const uint64_t bytes = opened.size_bytes();
  // Not read whole before it is known to be one: it may be a model's weights.
  if (!IsStateFile(file)) {
    Fail(ErrorKind::kCorrupt, "{}: not a state file of moesaic", file.string());
  }
  if (bytes > kMaxFileBytes) {
    Fail(ErrorKind::kCorrupt, "{}: is {}, expected at most {}; the file is damaged", file.string(),
         FormatBytes(bytes), FormatBytes(kMaxFileBytes));
  }
  std::vector<std::byte> content(bytes);
  content.resize(opened.ReadAt(0, content));
  return ParseState(content, file.string());
}

StateCheckpoint::StateCheckpoint(std::filesystem::path file, ModelFingerprint model,
                                 std::vector<StateSection*> sections)
    : file_(std::move(file)), model_(std::move(model)), sections_(std::move(sections)) {
  for (size_t i = 0; i < sections_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(sections_[i]->name() != sections_[j]->name());
  }
}

bool StateCheckpoint::Read(StoredState& state, StateLoadResult& result) const {
  if (!CheckStateFile(file_)) return false;
  try {
    state = ReadStateFile(file_);
    result.found = true;
    const std::string difference = FingerprintDifference(state.model, model_);
    if (difference.empty()) return true;
    result.problems.push_back(fmt::format("{}: was learned on another model ({}; {})",
                                          file_.string(), DescribeFingerprint(state.model),
                                          difference));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return false;
    result.found = true;
    result.problems.emplace_back(error.what());
  }
  return false;
}

bool StateCheckpoint::HasSection(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const StateSection* section) { return section->name() == name; });
}

StateLoadResult StateCheckpoint::Load() {
  StateLoadResult result;
  StoredState state;
  has_others_ = false;
  if (Read(state, result)) {
    for (const StoredSection& stored : state.sections) {
      has_others_ |= !HasSection(stored.name);
      for (StateSection* section : sections_) {
        if (stored.name != section->name()) continue;
        try {
          section->Load(stored.version, stored.bytes);
          ++result.sections_loaded;
        } catch (const Error& error) {
          result.problems.push_back(
              fmt::format("{}: {}: {}", file_.string(), stored.name, error.what()));
        }
      }
    }
  }
  found_ = result.problems.empty() ? Found::kUsable : Found::kRefused;
  return result;
}

StoredState StateCheckpoint::Snapshot() const {
  StoredState state;
  state.model = model_;
  for (const StateSection* section : sections_) {
    if (!section->any_thread()) state.sections.push_back(Stored(*section));
  }
  return state;
}

// What another predictor learned is not lost because this one does not know it.
void StateCheckpoint::CarryOver(StoredState& snapshot) {
  StoredState stored;
  StateLoadResult result;
  if (!Read(stored, result)) return;
  for (StoredSection& section : stored.sections) {
    if (!HasSection(section.name)) snapshot.sections.push_back(std::move(section));
  }
}

StateWriteResult StateCheckpoint::Write(StoredState snapshot) {
  CheckStateFile(file_);  // somebody may have put another file there since
  if (found_ == Found::kUnknown) {
    StoredState ignored;
    StateLoadResult result;
    has_others_ = Read(ignored, result);
    found_ = result.problems.empty() ? Found::kUsable : Found::kRefused;
  }
  StateWriteResult result;
  if (found_ == Found::kRefused) {
    std::error_code error;
    if (std::filesystem::exists(file_, error)) result.aside = SetFileAside(file_, "rejected");
    found_ = Found::kUsable;
    has_others_ = false;
  }
  for (const StateSection* section : sections_) {
    if (section->any_thread()) snapshot.sections.push_back(Stored(*section));
  }
  if (has_others_) CarryOver(snapshot);
  const std::vector<std::byte> packed = PackState(std::move(snapshot));
  WriteFileAtomically(file_, packed);
  result.bytes = packed.size();
  return result;
}

}  // namespace moesaic
