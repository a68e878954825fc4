#include "core/io/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/units.h"

#ifndef F_SEAL_FUTURE_WRITE  // kernel 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNameBytes = 64;
constexpr size_t kMostShareKeyBytes = size_t{16} << 10;
constexpr int kFdsOfHello = 2;  // of the memory and of what all write
constexpr int kConnectPauseMs = 20;

// What a member is sent, once, with two descriptors and the key behind it.
struct Hello {
  uint64_t magic;
  int32_t member;  // -1: there are as many as can be, and no descriptors
  uint32_t key_bytes;
  uint64_t memory_bytes;
  uint64_t control_bytes;
};
constexpr uint64_t kHelloMagic = 0x31657268736d6f65;  // "eomshre1"

bool IsName(std::string_view name) {
  if (name.empty() || name.size() > kMostNameBytes || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// A directory that other users have no say in.
void CheckDirectory(const fs::path& directory) {
  struct stat status;
  if (lstat(directory.c_str(), &status) != 0) {
    Fail(ErrorKind::kIo, "{}: cannot be made for the files of shared memory: {}",
         directory.string(), ErrnoMessage(errno));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 022) != 0) {
    Fail(ErrorKind::kIo,
         "{}: is another user's, or open to others: remove it, or give a path instead of a name",
         directory.string());
  }
}

// Of the two files, without what their names end with. `make`: its directory is made.
fs::path PrefixOf(const std::string& name, bool make) {
  if (name.find('/') != std::string::npos) {
    if (fs::path(name).filename().empty()) {
      Fail(ErrorKind::kInvalidArgument, "--share-experts: '{}' is a directory: give a name in it",
           name);
    }
    return fs::absolute(name);
  }
  if (!IsName(name)) {
    Fail(
        ErrorKind::kInvalidArgument,
        "--share-experts: '{}' is no name: it has letters, digits, '.', '_' and '-', at most {} of "
        "them, or is a path",
        name, kMostNameBytes);
  }
  fs::path directory = "/tmp/moesaic-" + std::to_string(geteuid());
  if (make) {
    mkdir(directory.c_str(), 0700);
    CheckDirectory(directory);
  }
  return directory / name;
}

fs::path WithEnding(fs::path prefix, const char* ending) { return prefix += ending; }

struct flock WholeFile(int type) {
  struct flock lock = {};
  lock.l_type = static_cast<decltype(lock.l_type)>(type);
  lock.l_whence = SEEK_SET;
  return lock;
}

OwnedFd NewMemory(uint64_t bytes, const char* what) {
  OwnedFd memory(memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) {
    Fail(ErrorKind::kUnsupported, "this system has no memory to share (memfd_create): {}",
         ErrnoMessage(errno));
  }
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    Fail(ErrorKind::kResourceExhausted, "cannot share {} of memory: {}", FormatBytes(bytes),
         ErrnoMessage(errno));
  }
  return memory;
}

// Behind the mapping of who fills it.
void Seal(const OwnedFd& memory, bool read_only) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  if (read_only &&
      fcntl(memory.get(), F_ADD_SEALS, kSize | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) {
    return;  // else the kernel is older, and members keep to what they map
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSize | F_SEAL_SEAL) != 0) {
    Fail(ErrorKind::kUnsupported, "shared memory cannot be sealed: {}", ErrnoMessage(errno));
  }
}

sockaddr_un AddressOf(const fs::path& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& text = path.native();
  if (text.size() >= sizeof(address.sun_path)) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: is too long for the path of a socket, which has {} bytes", text,
         sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  return address;
}

// Seqpacket: what is sent at once arrives at once.
OwnedFd NewSocket() {
  OwnedFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) Fail(ErrorKind::kIo, "cannot make a socket: {}", ErrnoMessage(errno));
  return made;
}

// The process at the other end is this user's.
bool IsOwnPeer(int fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

// Room for the descriptors of a Hello.
union FdSpace {
  char bytes[CMSG_SPACE(kFdsOfHello * sizeof(int))];
  cmsghdr header;
};

bool SendHello(int fd, const Hello& hello, const std::string& key, const int* fds) {
  iovec parts[] = {{const_cast<Hello*>(&hello), sizeof(hello)},
                   {const_cast<char*>(key.data()), hello.key_bytes}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  FdSpace space = {};
  if (fds != nullptr) {
    message.msg_control = space.bytes;
    message.msg_controllen = sizeof(space.bytes);
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(kFdsOfHello * sizeof(int));
    std::memcpy(CMSG_DATA(control), fds, kFdsOfHello * sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(hello) + hello.key_bytes);
}

struct Received {
  Hello hello = {};
  std::string key;
  OwnedFd memory;
  OwnedFd control;
};

// nullopt: the other end has closed, or says something else.
std::optional<Received> ReceiveHello(int fd) {
  Received received;
  received.key.resize(kMostShareKeyBytes);
  iovec parts[] = {{&received.hello, sizeof(received.hello)},
                   {received.key.data(), received.key.size()}};
  FdSpace space = {};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = space.bytes;
  message.msg_controllen = sizeof(space.bytes);
  ssize_t bytes = 0;
  do {
    bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return std::nullopt;
  if (const cmsghdr* const control = CMSG_FIRSTHDR(&message);
      control != nullptr && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS &&
      control->cmsg_len == CMSG_LEN(kFdsOfHello * sizeof(int))) {
    int fds[kFdsOfHello];
    std::memcpy(fds, CMSG_DATA(control), sizeof(fds));
    received.memory = OwnedFd(fds[0]);
    received.control = OwnedFd(fds[1]);
  }
  const Hello& hello = received.hello;
  if (static_cast<size_t>(bytes) < sizeof(hello) || hello.magic != kHelloMagic ||
      hello.key_bytes > kMostShareKeyBytes ||
      static_cast<size_t>(bytes) != sizeof(hello) + hello.key_bytes) {
    return std::nullopt;
  }
  received.key.resize(hello.key_bytes);
  return received;
}

// It is as large as was said, and stays so: reading it never faults.
bool IsSealed(const OwnedFd& memory, uint64_t bytes) {
  struct stat status;
  if (!memory || fstat(memory.get(), &status) != 0) return false;
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  return static_cast<uint64_t>(status.st_size) == bytes && seals >= 0 &&
         (seals & F_SEAL_SHRINK) != 0;
}

void Wait(int milliseconds) { poll(nullptr, 0, milliseconds); }

}  // namespace

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

// --- who fills

ShareClaim ShareClaim::Take(const std::string& name) {
  ShareClaim claim;
  claim.name_ = name;
  const fs::path prefix = PrefixOf(name, true);
  const fs::path file = WithEnding(prefix, ".lock");
  claim.socket_ = WithEnding(prefix, ".socket");
  AddressOf(claim.socket_);
  claim.lock_ = OwnedFd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat status;
  if (!claim.lock_ || fstat(claim.lock_.get(), &status) != 0) {
    Fail(ErrorKind::kIo, "{}: cannot be opened: {}{}", file.string(), ErrnoMessage(errno),
         errno == EACCES ? " (memory is shared between processes of one user)" : "");
  }
  if (status.st_uid != geteuid()) {
    Fail(ErrorKind::kIo,
         "{}: is another user's: memory is shared between processes of one user; give another name",
         file.string());
  }
  // Of the open file, not of the process: two engines of one process are two.
  struct flock lock = WholeFile(F_WRLCK);
  claim.fills_ = fcntl(claim.lock_.get(), F_OFD_SETLK, &lock) == 0;
  if (!claim.fills_ && errno != EAGAIN && errno != EACCES) {
    Fail(ErrorKind::kIo, "{}: cannot be locked: {}", file.string(), ErrnoMessage(errno));
  }
  return claim;
}

ShareClaim ShareClaim::Look(const std::string& name) {
  ShareClaim claim;
  claim.name_ = name;
  const fs::path prefix = PrefixOf(name, false);
  claim.socket_ = WithEnding(prefix, ".socket");
  claim.lock_ = OwnedFd(
      open(WithEnding(prefix, ".lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  claim.fills_ = !claim.HeldByOther();
  return claim;
}

bool ShareClaim::HeldByOther() const {
  if (!lock_) return false;
  struct flock lock = WholeFile(F_WRLCK);
  return fcntl(lock_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

SharedMapping::SharedMapping(const OwnedFd& memory, uint64_t bytes, bool writable) : bytes_(bytes) {
  void* const data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                          memory.get(), 0);
  if (data == MAP_FAILED) {
    Fail(ErrorKind::kResourceExhausted, "cannot map {} of shared memory: {}", FormatBytes(bytes),
         ErrnoMessage(errno));
  }
  data_ = static_cast<std::byte*>(data);
  // Best effort: only where the system gives huge pages to shared memory (shmem_enabled).
  if (bytes >= uint64_t{4} << 20) madvise(data, bytes, MADV_HUGEPAGE);
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

// --- the process that fills

SharedMemory::SharedMemory(const ShareClaim& claim, uint64_t memory_bytes, uint64_t control_bytes)
    : claim_(claim),
      memory_fd_(NewMemory(memory_bytes, "moesaic-experts")),
      control_fd_(NewMemory(control_bytes, "moesaic-slots")),
      memory_(memory_fd_, memory_bytes, true),
      control_(control_fd_, control_bytes, true),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(claim.fills());
  if (!stop_) Fail(ErrorKind::kIo, "cannot make an eventfd: {}", ErrnoMessage(errno));
  Seal(memory_fd_, true);
  Seal(control_fd_, false);
}

SharedMemory::~SharedMemory() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  const ssize_t written = write(stop_.get(), &one, sizeof(one));
  CHECK_EQ(written, static_cast<ssize_t>(sizeof(one)));
  thread_.join();
  unlink(claim_.socket().c_str());  // of this process, which still has the lock
}

void SharedMemory::Offer(std::string key, std::function<void(int)> on_gone) {
  CHECK(!thread_.joinable());
  CHECK_LE(key.size(), kMostShareKeyBytes);
  key_ = std::move(key);
  on_gone_ = std::move(on_gone);
  Listen();
  thread_ = std::thread([this] { Serve(); });
}

void SharedMemory::Listen() {
  const fs::path& path = claim_.socket();
  listener_ = NewSocket();
  unlink(path.c_str());  // what a process that was killed has left
  const sockaddr_un address = AddressOf(path);
  // Nobody can connect before listen, when nobody but this user can open it.
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(listener_.get(), kMostShareMembers) != 0) {
    Fail(ErrorKind::kIo, "{}: cannot listen: {}", path.string(), ErrnoMessage(errno));
  }
}

void SharedMemory::Serve() {
  std::vector<pollfd> watched;
  watched.reserve(2 + kMostShareMembers);
  for (;;) {
    watched.assign({{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const OwnedFd& connection : connections_) {
      watched.push_back({connection.get(), POLLIN, 0});  // -1 is not looked at
    }
    if (poll(watched.data(), watched.size(), -1) < 0) {
      CHECK_EQ(errno, EINTR);
      continue;
    }
    if (watched[0].revents != 0) return;
    for (size_t member = 0; member < connections_.size(); ++member) {
      if (watched[2 + member].revents == 0 || !Ended(watched[2 + member].fd)) continue;
      connections_[member] = OwnedFd();
      --members_;
      on_gone_(static_cast<int>(member));
      LogInfo("shared memory {}: process {} of those that read it has ended", claim_.name(),
              member + 1);
    }
    if (watched[1].revents == 0) continue;
    OwnedFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) Welcome(std::move(fd));
  }
}

// What a member says is of no interest, only that it is there.
bool SharedMemory::Ended(int fd) const {
  char ignored[64];
  const ssize_t bytes = recv(fd, ignored, sizeof(ignored), MSG_DONTWAIT);
  return bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
}

void SharedMemory::Welcome(OwnedFd fd) {
  if (!IsOwnPeer(fd.get())) {
    LogWarn("shared memory {}: a process of another user was refused", claim_.name());
    return;
  }
  const auto free = std::find_if(connections_.begin(), connections_.end(),
                                 [](const OwnedFd& connection) { return !connection; });
  const bool full = free == connections_.end();
  const auto member = full ? -1 : static_cast<int32_t>(free - connections_.begin());
  const Hello hello = {kHelloMagic, member, static_cast<uint32_t>(key_.size()), memory().size(),
                       control().size()};
  const int fds[kFdsOfHello] = {memory_fd_.get(), control_fd_.get()};
  if (full) {
    SendHello(fd.get(), hello, key_, nullptr);
    return;
  }
  // One that has the answer is counted.
  *free = std::move(fd);
  ++members_;
  if (SendHello(free->get(), hello, key_, fds)) return;
  *free = OwnedFd();
  --members_;
}

// --- another process

SharedMemoryView::SharedMemoryView(const ShareClaim& claim, std::string_view key,
                                   std::chrono::seconds patience) {
  CHECK(!claim.fills());
  const sockaddr_un address = AddressOf(claim.socket());
  const Stopwatch waited;
  for (;;) {
    connection_ = NewSocket();
    if (connect(connection_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      break;
    }
    const int error = errno;
    if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN && error != EINTR) {
      Fail(ErrorKind::kIo, "{}: cannot connect: {}{}", claim.socket().string(), ErrnoMessage(error),
           error == EACCES ? " (memory is shared between processes of one user)" : "");
    }
    if (!claim.HeldByOther()) {
      Fail(ErrorKind::kUnavailable,
           "the process that was to fill the shared memory {} has ended while this one started; "
           "start this one again",
           claim.name());
    }
    if (waited.seconds() > static_cast<double>(patience.count())) {
      Fail(ErrorKind::kUnavailable,
           "the process that fills the shared memory {} has not offered it for {} s: it still "
           "starts, or hangs",
           claim.name(), patience.count());
    }
    Wait(kConnectPauseMs);
  }
  const timeval limit = {static_cast<time_t>(std::max<int64_t>(1, patience.count())), 0};
  setsockopt(connection_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::optional<Received> received;
  if (IsOwnPeer(connection_.get())) received = ReceiveHello(connection_.get());
  if (!received) {
    Fail(ErrorKind::kUnavailable,
         "{}: does not answer as a process that shares memory does (another version, another user, "
         "or it has just ended)",
         claim.socket().string());
  }
  if (received->hello.member < 0) {
    Fail(ErrorKind::kResourceExhausted, "{} processes read the shared memory {} already",
         kMostShareMembers, claim.name());
  }
  if (received->key != key) {
    Fail(ErrorKind::kInvalidArgument,
         "--share-experts {}: this memory holds something else; give another name\n  there: {}\n  "
         "here:  {}",
         claim.name(), received->key, key);
  }
  if (received->hello.member >= kMostShareMembers ||
      !IsSealed(received->memory, received->hello.memory_bytes) ||
      !IsSealed(received->control, received->hello.control_bytes)) {
    Fail(ErrorKind::kCorrupt, "{}: what was handed over is no shared memory of this program",
         claim.socket().string());
  }
  member_ = received->hello.member;
  memory_ = SharedMapping(received->memory, received->hello.memory_bytes, false);
  control_ = SharedMapping(received->control, received->hello.control_bytes, true);
}

bool SharedMemoryView::FillerLives() const {
  char ignored[1];
  const ssize_t bytes = recv(connection_.get(), ignored, sizeof(ignored), MSG_DONTWAIT | MSG_PEEK);
  return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace moesaic
