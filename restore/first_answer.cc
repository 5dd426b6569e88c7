#include "restore/first_answer.h"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/socket_descriptors.h"
#include "base/status.h"
#include "restore/sandbox.h"

namespace rekindle::restore {
namespace {

constexpr double kBetweenLooks = 0.005;  // seconds
constexpr double kShareOfACpu = 0.05;    // that the looks of all may take

std::atomic<int> watches{0};

void AddSocketInodes(pid_t pid, std::set<uint32_t>* inodes) {
  ForEachSocketOf(pid, [&](int, uint64_t inode) {
    inodes->insert(static_cast<uint32_t>(inode));
    return true;
  });
}

// 0: it is ours.
absl::StatusOr<pid_t> NetworkOf(pid_t process) {
  struct stat own, theirs;
  const std::string path = absl::StrCat("/proc/", process, "/ns/net");
  if (::stat("/proc/self/ns/net", &own) != 0 || ::stat(path.c_str(), &theirs) != 0)
    return ErrnoStatus(errno, path);
  return own.st_ino == theirs.st_ino && own.st_dev == theirs.st_dev ? 0 : process;
}

}  // namespace

FirstAnswer::FirstAnswer() { ++watches; }
FirstAnswer::~FirstAnswer() { --watches; }

absl::StatusOr<std::unique_ptr<FirstAnswer>> FirstAnswer::Watch(std::vector<UniqueFd> processes) {
  std::unique_ptr<FirstAnswer> watch(new FirstAnswer());
  watch->processes_ = std::move(processes);
  RK_RETURN_IF_ERROR(watch->Begin());
  if (watch->listeners_.empty()) return nullptr;
  return watch;
}

absl::Status FirstAnswer::Begin() {
  if (processes_.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(pid_t first, PidOf(processes_.front().get()));
  RK_ASSIGN_OR_RETURN(pid_t network, NetworkOf(first));
  RK_ASSIGN_OR_RETURN(SocketDiag theirs, SocketDiag::Open(network));
  networks_.push_back(std::move(theirs));
  if (network != 0) {
    RK_ASSIGN_OR_RETURN(SocketDiag own, SocketDiag::Open(0));
    networks_.push_back(std::move(own));
  }
  const std::set<uint32_t> open = SocketInodes();
  RK_ASSIGN_OR_RETURN(std::vector<TcpSocket> tcp, networks_.front().Tcp(0, UINT16_MAX));
  for (const TcpSocket& socket : tcp) {
    if (!socket.listens) {
      before_.insert({0, socket.cookie});
    } else if (open.contains(socket.inode)) {
      ports_.insert(socket.ends.local_port);
      listeners_.insert(socket.inode);
    }
  }
  for (size_t i = 0; i < networks_.size(); ++i) {
    RK_ASSIGN_OR_RETURN(std::vector<UnixSocket> sockets, networks_[i].Unix());
    for (const UnixSocket& socket : sockets) {
      if (!socket.listens) {
        before_.insert({i, socket.cookie});
      } else if (i == 0 && open.contains(socket.inode)) {
        names_.insert(socket.name);
        listeners_.insert(socket.inode);
      }
    }
  }
  if (listeners_.empty()) return absl::OkStatus();
  epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  timer_.Reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  const int destroyed = ports_.empty() ? -1 : networks_.front().destroyed_fd();
  if (!epoll_.valid() || !timer_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0 ||
      (destroyed >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, destroyed, &event) != 0)) {
    return ErrnoStatus(errno, "watching the sockets of a job");
  }
  SetTimer(0);
  return absl::OkStatus();
}

std::set<uint32_t> FirstAnswer::SocketInodes() const {
  std::set<uint32_t> inodes;
  for (const UniqueFd& process : processes_) {
    if (absl::StatusOr<pid_t> pid = PidOf(process.get()); pid.ok()) AddSocketInodes(*pid, &inodes);
  }
  return inodes;
}

bool FirstAnswer::TimeIsUp() const {
  uint64_t times;
  return ::read(timer_.get(), &times, sizeof times) == sizeof times;
}

bool FirstAnswer::MayBeOurs(const TcpSocket& connection) const {
  return !connection.listens && ports_.contains(connection.ends.local_port) &&
         !before_.contains({0, connection.cookie});
}

absl::StatusOr<bool> FirstAnswer::Look() {
  Stopwatch watch;
  std::vector<TcpSocket> destroyed;
  for (const TcpSocket& socket : networks_.front().DestroyedTcp()) {
    const bool known = tcp_.contains({0, socket.cookie});
    if (socket.bytes_sent > 0 && MayBeOurs(socket) &&
        (known || !shared_ports_.contains(socket.ends.local_port))) {
      destroyed.push_back(socket);
    }
  }
  // Others' connections end too, as often as they like.
  if (destroyed.empty() && !TimeIsUp()) return false;
  bool answered = false;
  if (!ports_.empty()) {
    RK_ASSIGN_OR_RETURN(answered, AnsweredOverTcp(destroyed));
  }
  for (size_t i = 0; i < networks_.size() && !names_.empty() && !answered; ++i) {
    RK_ASSIGN_OR_RETURN(answered, AnsweredOverUnix(i));
  }
  SetTimer(watch.seconds());
  return answered;
}

absl::StatusOr<bool> FirstAnswer::AnsweredOverTcp(const std::vector<TcpSocket>& destroyed) {
  RK_ASSIGN_OR_RETURN(std::vector<TcpSocket> sockets,
                      networks_.front().Tcp(*ports_.begin(), *ports_.rbegin()));
  shared_ports_.clear();
  for (const TcpSocket& socket : sockets) {
    if (socket.listens && !listeners_.contains(socket.inode)) shared_ports_.insert(socket.ends.local_port);
  }
  std::optional<std::set<uint32_t>> open;
  for (const TcpSocket& socket : sockets) {
    if (!MayBeOurs(socket)) continue;
    if (shared_ports_.contains(socket.ends.local_port) && !tcp_.contains({0, socket.cookie})) {
      if (!open) open = SocketInodes();
      if (!open->contains(socket.inode)) continue;
    }
    if (socket.bytes_sent > 0) return true;
    tcp_.insert({0, socket.cookie});
  }
  return std::any_of(destroyed.begin(), destroyed.end(), [&](const TcpSocket& socket) {
    return tcp_.contains({0, socket.cookie}) || !shared_ports_.contains(socket.ends.local_port);
  });
}

absl::StatusOr<bool> FirstAnswer::AnsweredOverUnix(size_t network) {
  RK_ASSIGN_OR_RETURN(std::vector<UnixSocket> sockets, networks_[network].Unix());
  std::set<std::string> shared;
  for (const UnixSocket& socket : sockets) {
    if (socket.listens && !listeners_.contains(socket.inode)) shared.insert(socket.name);
  }
  std::optional<std::set<uint32_t>> open;
  std::set<Connection> there;
  for (const UnixSocket& socket : sockets) {
    const Connection connection(network, socket.cookie);
    if (socket.listens || !names_.contains(socket.name) || before_.contains(connection)) continue;
    if (shared.contains(socket.name) && !unix_.contains(connection)) {
      if (!open) open = SocketInodes();
      if (!open->contains(socket.inode)) continue;
    }
    if (socket.unread || socket.peer_ended) return true;
    there.insert(connection);
    unix_.insert(connection);
  }
  return std::any_of(unix_.begin(), unix_.end(), [&](const Connection& connection) {
    return connection.first == network && !there.contains(connection);
  });
}

void FirstAnswer::SetTimer(double look_seconds) {
  const double after = std::max(kBetweenLooks, look_seconds * watches / kShareOfACpu);
  const auto nanoseconds = static_cast<int64_t>(after * 1e9);
  itimerspec next{};
  next.it_value = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  ::timerfd_settime(timer_.get(), 0, &next, nullptr);
}

}  // namespace rekindle::restore
