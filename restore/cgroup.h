// A cgroup for one sandbox, with limits: of the unified hierarchy (v2) where that has the controllers, else
// one in each of the old ones (v1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct CgroupLimits {
  uint64_t memory_bytes = 0;  // 0: none, here and below
  double cpus = 0;
  uint32_t processes = 0;
  bool any() const { return memory_bytes > 0 || cpus > 0 || processes > 0; }
};

// How often the kernel has enforced a group's limits.
struct LimitEvents {
  uint64_t out_of_memory_kills = 0;
  uint64_t refused_processes = 0;
};

// Whether a process that has ended so was ended by one of these kills (LimitEvents), or has passed on that
// its child was, as a shell does: not where another one, such as a worker, was killed.
bool EndedByMemoryLimit(const ExitState& exit, uint64_t out_of_memory_kills);

// Why `what` ("restoring a copy of web:v1") has failed within `limits`: a ResourceExhausted that names the
// limit that was reached, the option that raises it, and what `failure` says of its consequence. Where none
// was reached it is `failure`.
absl::Status ExplainLimits(const absl::Status& failure, absl::string_view what, const CgroupLimits& limits,
                           const LimitEvents& events);

// Owned by one thread at a time.
class Cgroup {
 public:
  // Without limits. Unimplemented: this machine has no controllers for them, or we may not use them.
  static absl::StatusOr<std::unique_ptr<Cgroup>> Make();
  // Removes it; processes that are still in it are killed first. Takes no longer than some seconds: where one
  // does not end in that time, the groups stay, for RemoveLeftovers.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  // ResourceExhausted: its processes have more memory already. Those of `limits` that are none stay as they
  // are.
  absl::Status Set(const CgroupLimits& limits);
  // Memory that its processes have, and that was charged to whoever made it for them: counts for their limit,
  // of which a quarter at least is left to them, and for what they have in use. Before Set.
  void CountBeside(uint64_t bytes) { beside_ = bytes; }
  // Open cgroup.procs files: who writes "0" into each is in it.
  std::vector<int> processes() const;
  // That were set, together.
  const CgroupLimits& limits() const { return limits_; }
  LimitEvents Events() const;
  uint64_t OutOfMemoryKills() const;  // of these alone: one file is read
  uint64_t MemoryInUse() const;       // bytes
  // The most that it had in use, in bytes, since ResetPeak; since it was made where the kernel can't begin
  // anew (v2 before Linux 6.12). 0: the kernel does not tell. Thread-safe, as ResetPeak.
  uint64_t PeakMemory() const;
  void ResetPeak() const;
  // Where the memory controller has it (MemoryRoom).
  const std::string& memory_folder() const { return folders_.front(); }

  // Where there are controllers for limits, in words. Changes nothing. Unimplemented: there are none, or not
  // all; PermissionDenied, FailedPrecondition: they can't be used. Each says what to do. `mounts`: of whom it
  // is asked.
  static absl::StatusOr<std::string> Examine(const std::string& mounts = "/proc/self/mounts");
  // Bytes that all sandboxes together may still take: what the machine has available, or what the groups
  // around theirs leave free where that is less, as in a container. An error: the machine doesn't tell.
  static absl::StatusOr<uint64_t> AvailableMemory(const std::string& mounts = "/proc/self/mounts");
  // Removes the groups that dead Rekindles have left empty, whatever PID namespace they ran in.
  static void RemoveLeftovers();
  // Of a group that a dead Rekindle has left, by its memory_folder(): what is in it is killed, and starts
  // nothing meanwhile.
  static void EndProcesses(const std::string& memory_folder, absl::Duration patience);

 private:
  Cgroup() = default;
  static absl::StatusOr<std::unique_ptr<Cgroup>> MakeIn(const std::vector<std::string>& parents,
                                                        bool unified);
  CgroupLimits limits_;
  uint64_t beside_ = 0;
  uint64_t CountIn(const char* in_unified, const char* in_old, absl::string_view key) const;
  bool unified_ = false;
  std::vector<std::string> folders_;  // memory, cpu, pids (v1), or the one (v2)
  std::vector<UniqueFd> processes_;
  UniqueFd peak_;                // of memory; in v2 the kernel keeps one for each who has it open
  std::vector<UniqueFd> locks_;  // as long as they are held, nobody takes the folders for left over
};

}  // namespace rekindle::restore
