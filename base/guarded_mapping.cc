#include "base/guarded_mapping.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr size_t kMostMappings = 4096;
constexpr uint64_t kPageBytes = 4096;

// Written under `table_mutex`, read by the handler at any moment. `begin` is set last and cleared first: a
// slot that changes while the handler looks at it is of a mapping that nobody reads.
struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> lost{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

Slot table[kMostMappings];
std::atomic<size_t> slots_used{0};  // those behind were never used
ABSL_CONST_INIT absl::Mutex table_mutex(absl::kConstInit);
absl::once_flag installed;
struct sigaction former_action;  // what SIGBUS did, set before the handler is

// Only system calls and atomics.
void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const size_t used = slots_used.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    Slot& slot = table[i];
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= end || slot.begin.load() != begin) continue;
    slot.lost.store(true);
    const long zeros = ::syscall(SYS_mmap, begin, end - begin, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros != static_cast<long>(begin)) break;
    errno = saved;
    return;
  }
  errno = saved;
  if ((former_action.sa_flags & SA_SIGINFO) != 0 && former_action.sa_sigaction != nullptr) {
    former_action.sa_sigaction(signal, info, context);
  } else if (former_action.sa_handler != SIG_DFL && former_action.sa_handler != SIG_IGN) {
    former_action.sa_handler(signal);
  } else {
    // It happens again when this returns, and then ends the process as it would have.
    ::sigaction(signal, &former_action, nullptr);
  }
}

void Install() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, nullptr, &former_action);
  ::sigaction(SIGBUS, &action, nullptr);
}

// A free slot, taken; kMostMappings: none.
size_t TakeSlot(uintptr_t begin, uintptr_t end) {
  absl::MutexLock lock(&table_mutex);
  for (size_t i = 0; i < kMostMappings; ++i) {
    Slot& slot = table[i];
    if (slot.begin.load() != 0) continue;
    slot.lost = false;
    slot.end = end;
    slot.begin = begin;
    if (i >= slots_used.load()) slots_used.store(i + 1, std::memory_order_release);
    return i;
  }
  return kMostMappings;
}

}  // namespace

absl::StatusOr<GuardedMapping> GuardedMapping::Map(int fd, uint64_t offset, uint64_t bytes,
                                                   const std::string& path) {
  absl::call_once(installed, Install);
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("mapping ", path));
  const auto size = static_cast<uint64_t>(info.st_size);
  if (bytes > size || offset > size - bytes) {
    return absl::DataLossError(absl::StrCat(path, " ends at ", size, ", too early"));
  }
  GuardedMapping mapping;
  mapping.path_ = path;
  if (bytes == 0) return mapping;
  const uint64_t skip = offset % kPageBytes;
  const size_t mapped = (skip + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* base = ::mmap(nullptr, mapped, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset - skip));
  if (base == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("mapping ", path));
  const auto begin = reinterpret_cast<uintptr_t>(base);
  mapping.slot_ = TakeSlot(begin, begin + mapped);
  if (mapping.slot_ == kMostMappings) {
    ::munmap(base, mapped);
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping ", path, ": ", kMostMappings, " files are mapped already"));
  }
  mapping.base_ = base;
  mapping.mapped_ = mapped;
  mapping.bytes_ = {static_cast<const std::byte*>(base) + skip, bytes};
  return mapping;
}

GuardedMapping::GuardedMapping(GuardedMapping&& other) noexcept { *this = std::move(other); }

GuardedMapping& GuardedMapping::operator=(GuardedMapping&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  base_ = std::exchange(other.base_, nullptr);
  mapped_ = std::exchange(other.mapped_, 0);
  slot_ = other.slot_;
  bytes_ = std::exchange(other.bytes_, {});
  path_ = std::move(other.path_);
  return *this;
}

GuardedMapping::~GuardedMapping() { Unmap(); }

void GuardedMapping::Unmap() {
  if (base_ == nullptr) return;
  {
    absl::MutexLock lock(&table_mutex);
    table[slot_].begin = 0;
    table[slot_].end = 0;
  }
  ::munmap(base_, mapped_);
  base_ = nullptr;
}

bool GuardedMapping::lost() const { return base_ != nullptr && table[slot_].lost.load(); }

absl::Status GuardedMapping::LostStatus() const {
  return absl::DataLossError(absl::StrCat(
      "reading ", path_, ": the disk reports an input/output error, or the file was made shorter meanwhile"));
}

}  // namespace rekindle
