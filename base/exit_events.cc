#include "base/exit_events.h"

#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/wait_status.h"

namespace rekindle {
namespace {

// It answers at once, or never.
constexpr absl::Duration kAnswers = absl::Seconds(1);
// A filter has 4096 instructions at most, two for each process.
constexpr size_t kMostExpected = 1000;
constexpr int kRoomBytes = 1 << 20;
// What is told of a process's end comes so much later at most, on a busy machine; and nothing behind it.
constexpr absl::Duration kMayComeLater = absl::Milliseconds(500);
constexpr int kQuietMs = 5;

// Of proc_event::what; their place in <linux/cn_proc.h> has changed.
constexpr uint32_t kAnswer = 0, kExit = 0x80000000;

constexpr size_t kEventAt = sizeof(nlmsghdr) + sizeof(cn_msg);
constexpr size_t kWhatAt = kEventAt + offsetof(proc_event, what);
constexpr size_t kThreadGroupAt = kEventAt + offsetof(proc_event, event_data.exit.process_tgid);

// Filters read words as the network has them.
uint32_t AsLoaded(uint32_t word) { return __builtin_bswap32(word); }

absl::Status AttachFilter(int socket, const std::vector<pid_t>& thread_groups) {
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kWhatAt),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AsLoaded(kExit), 1, 0),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kThreadGroupAt),
  };
  for (const pid_t pid : thread_groups) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AsLoaded(static_cast<uint32_t>(pid)), 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, 0xffffffff));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0)
    return absl::OkStatus();
  return ErrnoStatus(errno, "choosing the kernel's process events");
}

// The next event, if one is there.
std::optional<proc_event> Receive(int socket) {
  alignas(nlmsghdr) std::byte message[1024];
  for (;;) {
    sockaddr_nl from = {};
    socklen_t from_bytes = sizeof from;
    const ssize_t n = ::recvfrom(socket, message, sizeof message, MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&from), &from_bytes);
    if (n < 0 && (errno == EINTR || errno == ENOBUFS)) continue;
    if (n < 0) return std::nullopt;
    if (from.nl_pid != 0 || static_cast<size_t>(n) < kEventAt + offsetof(proc_event, event_data)) continue;
    proc_event event = {};
    std::memcpy(&event, message + kEventAt, std::min(sizeof event, static_cast<size_t>(n) - kEventAt));
    return event;
  }
}

absl::Status Subscribe(int socket) {
  const proc_cn_mcast_op what = PROC_CN_MCAST_LISTEN;
  nlmsghdr netlink = {};
  cn_msg connector = {};
  connector.id = {CN_IDX_PROC, CN_VAL_PROC};
  connector.len = sizeof what;
  netlink.nlmsg_len = sizeof netlink + sizeof connector + sizeof what;
  netlink.nlmsg_type = NLMSG_DONE;
  netlink.nlmsg_pid = static_cast<uint32_t>(::getpid());
  std::byte request[sizeof netlink + sizeof connector + sizeof what];
  std::memcpy(request, &netlink, sizeof netlink);
  std::memcpy(request + sizeof netlink, &connector, sizeof connector);
  std::memcpy(request + sizeof netlink + sizeof connector, &what, sizeof what);
  if (::send(socket, request, sizeof request, 0) < 0)
    return ErrnoStatus(errno, "asking for the kernel's process events");
  // Events that others have asked for come here as well, and may never pause.
  const Deadline patience(kAnswers);
  pollfd answer{socket, POLLIN, 0};
  while (!patience.passed() && ::poll(&answer, 1, patience.left_ms()) > 0) {
    const std::optional<proc_event> event = Receive(socket);
    if (!event || static_cast<uint32_t>(event->what) != kAnswer) continue;
    if (event->event_data.ack.err == 0) return absl::OkStatus();
    return absl::UnavailableError("the kernel tells us no process events");
  }
  return absl::UnavailableError("the kernel tells no process events here");
}

}  // namespace

bool ExitEvents::PidfdsTell() {
  struct utsname names;
  int major = 0, minor = 0;
  if (::uname(&names) != 0 || std::sscanf(names.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 15);
}

absl::StatusOr<std::unique_ptr<ExitEvents>> ExitEvents::Listen() {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_CONNECTOR));
  sockaddr_nl address = {};
  address.nl_family = AF_NETLINK;
  address.nl_groups = CN_IDX_PROC;
  if (!socket.valid() || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return absl::UnavailableError(ErrnoStatus(errno, "listening to the kernel's process events").message());
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kRoomBytes, sizeof kRoomBytes);
  RK_RETURN_IF_ERROR(Subscribe(socket.get()));
  RK_RETURN_IF_ERROR(AttachFilter(socket.get(), {}));
  while (Receive(socket.get())) {
  }
  return std::unique_ptr<ExitEvents>(new ExitEvents(std::move(socket)));
}

absl::Status ExitEvents::Expect(pid_t pid) {
  absl::MutexLock lock(&mutex_);
  if (expected_.size() >= kMostExpected)
    return absl::ResourceExhaustedError("too many processes whose end is waited for");
  expected_[pid] = std::nullopt;
  return Filter();
}

std::optional<ExitState> ExitEvents::Take(pid_t pid) {
  absl::MutexLock lock(&mutex_);
  const auto expected = expected_.find(pid);
  if (expected == expected_.end()) return std::nullopt;
  const Deadline patience(kMayComeLater);
  for (bool more = true; more && !patience.passed();) {
    Read();
    // That of its last thread may come behind those of others.
    pollfd socket{socket_.get(), POLLIN, 0};
    more = ::poll(&socket, 1, expected->second ? kQuietMs : patience.left_ms()) != 0;
  }
  const auto taken = expected_.extract(expected);
  Filter().IgnoreError();
  return taken.mapped();
}

absl::Status ExitEvents::Filter() {
  std::vector<pid_t> pids;
  for (const auto& [pid, exit] : expected_) pids.push_back(pid);
  return AttachFilter(socket_.get(), pids);
}

void ExitEvents::Read() {
  while (const std::optional<proc_event> event = Receive(socket_.get())) {
    if (static_cast<uint32_t>(event->what) != kExit) continue;
    const auto& end = event->event_data.exit;
    // One for each thread: the status is that of the last one, if the process did not end as a whole.
    const auto expected = expected_.find(end.process_tgid);
    if (expected != expected_.end()) expected->second = ExitStateOf(static_cast<int>(end.exit_code));
  }
}

}  // namespace rekindle
