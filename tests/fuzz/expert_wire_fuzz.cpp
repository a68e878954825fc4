// Frames between a server of experts and its clients: what is accepted is what would be written,
// and a server's side of a conversation takes any bytes, also behind a handshake that is right.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/expert_wire.h"

namespace {

constexpr std::string_view kKey = "0123456789abcdef0123456789abcdef";

template <typename Frame>
void CheckFrame(std::span<const std::byte> bytes, size_t frame_bytes) {
  Frame frame;
  if (!moesaic::ReadExpertFrame(bytes, frame)) return;
  CHECK_EQ(bytes.size(), frame_bytes);
  std::vector<std::byte> again(frame_bytes);
  moesaic::WriteExpertFrame(frame, again);
  CHECK(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
}

// The fuzzer does not find checksums by itself: frames of fields that it chose. What is refused
// would not be sent; what is accepted comes back.
template <typename Frame>
void CheckFields(std::span<const std::byte> bytes, size_t frame_bytes) {
  if (bytes.size() < sizeof(Frame)) return;
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof(Frame));
  std::vector<std::byte> written(frame_bytes);
  moesaic::WriteExpertFrame(frame, written);
  CheckFrame<Frame>(written, frame_bytes);
}

// Frames of the right sizes, cut out of the input, until it is refused or there is no more.
void Talk(moesaic::ExpertGate& gate, std::span<const std::byte> bytes,
          std::span<const moesaic::ExpertStoreIdentity> stores) {
  while (bytes.size() >= gate.wanted_bytes()) {
    const size_t taken = gate.wanted_bytes();
    const auto step = gate.Take(bytes.first(taken));
    bytes = bytes.subspan(taken);
    if (step == moesaic::ExpertGate::Step::kRefuse) return;
    CHECK(step == moesaic::ExpertGate::Step::kRead);  // the key is not in the corpus
    CHECK_LT(gate.store(), stores.size());
    CHECK_GT(gate.request().bytes, 0u);
    CHECK_LE(gate.request().bytes, moesaic::kMostExpertReadBytes);
    CHECK_LE(gate.request().offset, stores[gate.store()].bytes - gate.request().bytes);
  }
}

void CheckAddress(std::string_view text) {
  if (!moesaic::IsExpertPeer(text)) return;
  try {
    const moesaic::ExpertPeer peer = moesaic::ParseExpertPeer(text);
    CHECK_GT(peer.port, 0);
    const moesaic::ExpertPeer again = moesaic::ParseExpertPeer(moesaic::ExpertPeerName(peer));
    CHECK(again.host == peer.host && again.port == peer.port);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  CheckAddress({reinterpret_cast<const char*>(data), size});
  CheckFrame<moesaic::ExpertHello>(bytes, moesaic::kExpertHelloBytes);
  CheckFrame<moesaic::ExpertAuth>(bytes, moesaic::kExpertAuthBytes);
  CheckFrame<moesaic::ExpertWelcome>(bytes, moesaic::kExpertWelcomeBytes);
  CheckFrame<moesaic::ExpertReadRequest>(bytes, moesaic::kExpertReadRequestBytes);
  CheckFrame<moesaic::ExpertReadReply>(bytes, moesaic::kExpertReadReplyBytes);
  CheckFields<moesaic::ExpertWelcome>(bytes, moesaic::kExpertWelcomeBytes);
  CheckFields<moesaic::ExpertReadRequest>(bytes, moesaic::kExpertReadRequestBytes);
  CheckFields<moesaic::ExpertReadReply>(bytes, moesaic::kExpertReadReplyBytes);

  const moesaic::ExpertStoreIdentity stores[] = {{1, uint64_t{64} << 20}, {2, 12 << 20}};
  const moesaic::ExpertNonce nonce = {std::byte{7}};
  moesaic::ExpertGate stranger(kKey, nonce, stores);
  Talk(stranger, bytes, stores);
  CHECK(!stranger.known());

  moesaic::ExpertGate client(kKey, nonce, stores);
  const moesaic::ExpertNonce other = {std::byte{9}};
  std::vector<std::byte> auth(moesaic::kExpertAuthBytes);
  const moesaic::ExpertStoreIdentity& store = stores[size % 2];
  moesaic::WriteExpertFrame(
      moesaic::ExpertAuth{other, store, moesaic::ClientMac(kKey, nonce, other, store)}, auth);
  CHECK(client.Take(auth) == moesaic::ExpertGate::Step::kKnown);
  CHECK(client.Admit(false).status == moesaic::ExpertWelcomeStatus::kOk);
  CHECK_EQ(client.store(), size % 2);
  Talk(client, bytes, stores);
  if (size >= sizeof(moesaic::ExpertReadRequest)) {
    moesaic::ExpertReadRequest request;
    std::memcpy(&request, data, sizeof(request));
    std::vector<std::byte> frame(moesaic::kExpertReadRequestBytes);
    moesaic::WriteExpertFrame(request, frame);
    Talk(client, frame, stores);
  }
  return 0;
}
