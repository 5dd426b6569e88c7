// Device memory that moves out becomes memory of its process. A limit that is exceeded on the way costs the
// job its life, so it is counted before anything moves, beside what other moves under way still need.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

// How much more host memory something that limits a process (a cgroup) leaves it.
struct HostLimit {
  std::string name;  // the same for all processes that share it
  uint64_t left_bytes = 0;
};

// Memory that is the processes' own, in bytes: what device memory becomes.
uint64_t OwnBytes(absl::Span<const pid_t> pids);

// Can own memory that has changed by `moved` bytes be what `device_bytes` on so many GPUs became, or were?
bool CanBeWholeMove(uint64_t device_bytes, size_t gpus, uint64_t moved);

// Thread-safe. Knows the moves of this process alone.
class HostMemory {
  struct Move;

 public:
  // What limits a process, beside the machine. Empty: nobody looks. `context_bytes`: what a driver saves of
  // its own for each process on each GPU, beside what the process has there.
  explicit HostMemory(std::function<std::vector<HostLimit>(pid_t pid)> limits_of, uint64_t context_bytes = 0)
      : limits_of_(std::move(limits_of)), context_bytes_(context_bytes) {}

  // Given back when it goes, by any thread. Must not outlive the HostMemory.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept : memory_(other.memory_), move_(other.move_) {
      other.memory_ = nullptr;
    }
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation();

   private:
    friend class HostMemory;
    Reservation(HostMemory* memory, std::list<Move>::iterator move) : memory_(memory), move_(move) {}
    HostMemory* memory_;
    std::list<Move>::iterator move_;
  };
  // Room for `uses`, of processes of `pids`, on its way out. As the processes grow, less of it is held for
  // them. ResourceExhausted: there is not as much.
  absl::StatusOr<Reservation> Reserve(absl::Span<const pid_t> pids, absl::Span<const GpuUse> uses)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Move {
    struct Share {
      uint64_t bytes = 0;
      std::map<pid_t, uint64_t> had;  // own memory of the processes under this limit, when it began
    };
    std::map<std::string, Share> by_limit;
  };
  // What the moves under way have not made use of yet.
  std::map<std::string, uint64_t> Outstanding() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<std::vector<HostLimit>(pid_t)> limits_of_;
  const uint64_t context_bytes_;
  absl::Mutex mutex_;
  std::list<Move> moves_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::gpu
