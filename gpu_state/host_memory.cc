#include "gpu_state/host_memory.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/machine.h"
#include "base/status.h"

namespace rekindle::gpu {
namespace {

constexpr char kMachine[] = "";  // among what limits host memory
// A context has code, stacks and reserves on the device that a checkpoint need not keep.
constexpr uint64_t kContextBytes = uint64_t{1} << 30;
// Where nothing was moved, host memory grows by next to nothing; reserves that were never written may stay
// out.
constexpr uint64_t kPlausibleShare = 8;

absl::Status NoRoom(const std::string& limit, uint64_t wanted, uint64_t left, uint64_t others) {
  const std::string beside =
      others > 0 ? absl::StrCat(" beside ", FormatBytes(others), " for other jobs that are being moved") : "";
  if (limit == kMachine) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job has up to ", FormatBytes(wanted),
                     " on its GPUs, the driver's contexts included, which has to fit into host memory, and ",
                     FormatBytes(left - others), " is free", beside,
                     "; nothing was moved. Free host memory, or let the job drop its caches first"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the job has up to ", FormatBytes(wanted),
                   " on its GPUs, the driver's contexts included, which becomes host memory of its own, and "
                   "its limit (",
                   limit, ") leaves it ", FormatBytes(left - others), beside,
                   "; nothing was moved. Give it more host memory, or let it drop its caches first"));
}

}  // namespace

uint64_t OwnBytes(absl::Span<const pid_t> pids) {
  uint64_t bytes = 0;
  for (pid_t pid : pids) {
    auto status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
    if (!status.ok()) continue;
    for (absl::string_view line : absl::StrSplit(*status, '\n')) {
      for (absl::string_view key : {"RssAnon:", "RssShmem:", "VmSwap:"}) {
        if (!absl::StartsWith(line, key)) continue;
        std::vector<absl::string_view> words =
            absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
        uint64_t kib = 0;
        if (words.size() >= 2 && absl::SimpleAtoi(words[1], &kib)) bytes += kib << 10;
      }
    }
  }
  return bytes;
}

bool CanBeWholeMove(uint64_t device_bytes, size_t gpus, uint64_t moved) {
  const uint64_t context_bytes = kContextBytes * gpus;
  return device_bytes <= context_bytes || moved >= (device_bytes - context_bytes) / kPlausibleShare;
}

std::map<std::string, uint64_t> HostMemory::Outstanding() const {
  std::map<std::string, uint64_t> outstanding;
  for (const Move& move : moves_) {
    for (const auto& [limit, share] : move.by_limit) {
      uint64_t grown = 0;
      for (const auto& [pid, had] : share.had) {
        const uint64_t now = OwnBytes({pid});
        grown += now - std::min(now, had);
      }
      outstanding[limit] += share.bytes - std::min(share.bytes, grown);
    }
  }
  return outstanding;
}

absl::StatusOr<HostMemory::Reservation> HostMemory::Reserve(absl::Span<const pid_t> pids,
                                                            absl::Span<const GpuUse> uses) {
  std::map<pid_t, uint64_t> of_process;
  for (pid_t pid : pids) of_process[pid] = 0;
  for (const GpuUse& use : uses) of_process[use.pid] += use.bytes.value_or(0) + context_bytes_;

  absl::MutexLock lock(&mutex_);
  // Before what is left is read: what a move takes in between then counts twice, and not at all never.
  std::map<std::string, uint64_t> outstanding = Outstanding();
  std::map<std::string, uint64_t> left;
  Move move;
  for (const auto& [pid, bytes] : of_process) {
    std::vector<HostLimit> limits;
    if (limits_of_) limits = limits_of_(pid);
    limits.push_back({kMachine, 0});
    const uint64_t has = OwnBytes({pid});
    for (const HostLimit& limit : limits) {
      left[limit.name] = limit.left_bytes;
      move.by_limit[limit.name].bytes += bytes;
      move.by_limit[limit.name].had[pid] = has;
    }
  }
  RK_ASSIGN_OR_RETURN(left[kMachine], AvailableMemoryBytes());
  for (const auto& [limit, share] : move.by_limit) {
    const uint64_t others = std::min(left[limit], outstanding[limit]);
    if (share.bytes > left[limit] - others) return NoRoom(limit, share.bytes, left[limit], others);
  }
  moves_.push_front(std::move(move));
  return Reservation(this, moves_.begin());
}

HostMemory::Reservation::~Reservation() {
  if (memory_ == nullptr) return;
  absl::MutexLock lock(&memory_->mutex_);
  memory_->moves_.erase(move_);
}

}  // namespace rekindle::gpu
