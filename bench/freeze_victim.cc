#include "bench/freeze_victim.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "bench/page_sizes.h"

namespace rekindle::bench {
namespace {

constexpr uint64_t kWordsPerPage = kPageBytes / 8, kRunPages = 16;

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

bool Changes(uint64_t page, int percent) {
  return Mix(page / kRunPages + 1) % 100 < static_cast<uint64_t>(percent);
}

uint64_t GoOver(uint64_t* words, uint64_t pages, int percent, uint64_t by) {
  uint64_t sum = 0;
  for (uint64_t page = 0; page < pages; ++page, words += kWordsPerPage) {
    if (Changes(page, percent)) {
      for (uint64_t i = 0; i < kWordsPerPage; ++i) words[i] += by;
    } else {
      for (uint64_t i = 0; i < kWordsPerPage; ++i) sum += words[i];
    }
  }
  return sum;
}

uint64_t* MakeMemory(uint64_t bytes, bool huge) {
  // Aligned to huge pages.
  void* mapped =
      ::mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  uint64_t at = (reinterpret_cast<uintptr_t>(mapped) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* words = reinterpret_cast<uint64_t*>(at);
  if (::madvise(words, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0) return nullptr;
  uint64_t state = 88172645463325252;
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
  return words;
}

int WriteProtectable(uint64_t address, uint64_t bytes, uint64_t features, int* error) {
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  uffdio_register area{};
  area.range = {address, bytes};
  area.mode = UFFDIO_REGISTER_MODE_WP;
  if (fd >= 0 && ::ioctl(fd, UFFDIO_API, &api) == 0 && ::ioctl(fd, UFFDIO_REGISTER, &area) == 0) return fd;
  *error = errno;
  if (fd >= 0) ::close(fd);
  return -1;
}

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

struct Victim::Order {
  enum Kind { kPass, kFork, kRegister } kind;
  int percent;
  uint64_t features;
};

struct Victim::Answer {
  double seconds;
  uint64_t value;  // the memory's address, or the twin's PID
  int error;       // errno
};

void Victim::Live(int socket, uint64_t bytes, bool huge) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGCHLD, SIG_IGN);
  uint64_t* words = MakeMemory(bytes, huge);
  Answer answer{0, reinterpret_cast<uintptr_t>(words), words == nullptr ? errno : 0};
  if (!SendPacket(socket, BytesOf(answer)).ok() || words == nullptr) ::_exit(1);
  volatile uint64_t sum = 0;
  for (;;) {
    auto packet = ReceivePacket(socket);
    if (!packet.ok() || !packet->has_value()) ::_exit(0);
    Order order;
    std::memcpy(&order, (*packet)->bytes.data(), sizeof order);
    answer = {};
    int descriptor = -1;
    Stopwatch watch;
    if (order.kind == Order::kPass) {
      sum = sum + GoOver(words, bytes / kPageBytes, order.percent, 0x9e3779b97f4a7c15);
    } else if (order.kind == Order::kFork) {
      const pid_t twin = ::fork();
      if (twin == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) ::pause();
      }
      answer.value = static_cast<uint64_t>(twin);
      answer.error = twin < 0 ? errno : 0;
    } else {
      descriptor = WriteProtectable(reinterpret_cast<uintptr_t>(words), bytes, order.features, &answer.error);
    }
    answer.seconds = watch.seconds();
    const bool sent =
        SendPacket(socket, BytesOf(answer), absl::MakeConstSpan(&descriptor, descriptor >= 0 ? 1 : 0)).ok();
    // Registered for as long as anybody has it open.
    if (descriptor >= 0) ::close(descriptor);
    if (!sent) ::_exit(1);
  }
}

absl::StatusOr<std::unique_ptr<Victim>> Victim::Start(uint64_t bytes, bool huge) {
  RK_ASSIGN_OR_RETURN(auto sockets, PacketSocketPair());
  std::unique_ptr<Victim> victim(new Victim);
  victim->bytes_ = bytes;
  victim->pid_ = ::fork();
  if (victim->pid_ < 0) return ErrnoStatus(errno, "forking a process to freeze");
  if (victim->pid_ == 0) {
    sockets.first.Reset();
    Live(sockets.second.get(), bytes, huge);
  }
  victim->socket_ = std::move(sockets.first);
  sockets.second.Reset();
  RK_ASSIGN_OR_RETURN(Answer ready, victim->Receive());
  victim->address_ = ready.value;
  return victim;
}

Victim::~Victim() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

absl::Status Victim::Send(const Order& order) { return SendPacket(socket_.get(), BytesOf(order)); }

absl::StatusOr<Victim::Answer> Victim::Receive(UniqueFd* descriptor) {
  RK_ASSIGN_OR_RETURN(auto packet, ReceivePacket(socket_.get()));
  Answer answer;
  if (!packet.has_value() || packet->bytes.size() != sizeof answer) {
    return absl::UnavailableError("the process to freeze has ended (out of memory?)");
  }
  std::memcpy(&answer, packet->bytes.data(), sizeof answer);
  if (answer.error != 0) return ErrnoStatus(answer.error, "in the process to freeze");
  if (descriptor != nullptr && !packet->descriptors.empty()) *descriptor = std::move(packet->descriptors[0]);
  return answer;
}

absl::Status Victim::BeginPass(int percent) { return Send({Order::kPass, percent, 0}); }

absl::StatusOr<double> Victim::EndPass() {
  RK_ASSIGN_OR_RETURN(Answer answer, Receive());
  return answer.seconds;
}

absl::StatusOr<double> Victim::Pass(int percent) {
  RK_RETURN_IF_ERROR(BeginPass(percent));
  return EndPass();
}

absl::StatusOr<Victim::Twin> Victim::Fork() {
  RK_RETURN_IF_ERROR(Send({Order::kFork, 0, 0}));
  RK_ASSIGN_OR_RETURN(Answer answer, Receive());
  return Twin{static_cast<pid_t>(answer.value), answer.seconds};
}

absl::StatusOr<UniqueFd> Victim::RegisterForWriteProtection(uint64_t features) {
  RK_RETURN_IF_ERROR(Send({Order::kRegister, 0, features}));
  UniqueFd descriptor;
  RK_RETURN_IF_ERROR(Receive(&descriptor).status());
  return descriptor;
}

absl::Status Victim::Stop() {
  int status = 0;
  if (::kill(pid_, SIGSTOP) != 0 || ::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) {
    return ErrnoStatus(errno, "stopping the process to freeze");
  }
  return absl::OkStatus();
}

void Victim::Go() { ::kill(pid_, SIGCONT); }

}  // namespace rekindle::bench
