#include "gpu_state/machine_turn.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"

namespace rekindle::gpu {
namespace {

// Others, of other versions, need the same.
constexpr char kPrefix[] = "rekindle-gpu-turn-";

struct Address {
  explicit Address(const std::string& gpu) {
    const std::string name = absl::StrCat(kPrefix, gpu).substr(0, sizeof address.sun_path - 1);
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address = {};
  socklen_t bytes = 0;
};

// Those of this process, by GPU.
struct OwnTurns {
  absl::Mutex mutex;
  std::map<std::string, std::weak_ptr<const UniqueFd>> sockets ABSL_GUARDED_BY(mutex);
};
OwnTurns& Own() {
  static auto* own = new OwnTurns();
  return *own;
}

UniqueFd NewSocket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

absl::StatusOr<MachineTurn> MachineTurn::Take(const std::string& gpu) {
  const Address address(gpu);
  UniqueFd socket = NewSocket();
  if (!socket.valid()) return ErrnoStatus(errno, "making a socket");
  if (::bind(socket.get(), address.get(), address.bytes) == 0) {
    // So that others may ask who we are, each every second or so: what they leave here nobody takes.
    ::listen(socket.get(), SOMAXCONN);
    auto turn = std::make_shared<const UniqueFd>(std::move(socket));
    absl::MutexLock lock(&Own().mutex);
    Own().sockets[gpu] = turn;
    return MachineTurn(std::move(turn));
  }
  if (errno == EADDRINUSE) return absl::UnavailableError(absl::StrCat("somebody moves memory onto ", gpu));
  Log(LogLevel::kWarning, absl::StrCat("Rekindles of other users may move memory onto ", gpu,
                                       " just now: ", ErrnoStatus(errno, "naming a socket").message()));
  return MachineTurn(nullptr);
}

std::optional<MachineTurn> MachineTurn::Join(const std::string& gpu) {
  absl::MutexLock lock(&Own().mutex);
  const auto turn = Own().sockets.find(gpu);
  std::shared_ptr<const UniqueFd> socket = turn == Own().sockets.end() ? nullptr : turn->second.lock();
  if (socket == nullptr) return std::nullopt;
  return MachineTurn(std::move(socket));
}

std::optional<TurnHolder> HolderOfMachineTurn(const std::string& gpu) {
  const Address address(gpu);
  const UniqueFd socket = NewSocket();
  if (!socket.valid() || ::connect(socket.get(), address.get(), address.bytes) != 0) return std::nullopt;
  ucred who = {};
  socklen_t bytes = sizeof who;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  return TurnHolder{who.pid, who.uid};
}

}  // namespace rekindle::gpu
