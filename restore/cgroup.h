// A cgroup for one sandbox, with limits: of the unified hierarchy (v2) where that has the controllers, else
// one in each of the old ones (v1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct CgroupLimits {
  uint64_t memory_bytes = 0;  // 0: none, here and below
  double cpus = 0;
  uint32_t processes = 0;
  bool any() const { return memory_bytes > 0 || cpus > 0 || processes > 0; }
};

// Owned by one thread at a time.
class Cgroup {
 public:
  // Without limits. Unimplemented: this machine has no controllers for them, or we may not use them.
  static absl::StatusOr<std::unique_ptr<Cgroup>> Make();
  // Removes it; processes that are still in it are killed first.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  absl::Status Set(const CgroupLimits& limits);
  // Open cgroup.procs files: who writes "0" into each is in it.
  std::vector<int> processes() const;
  // How many of its processes the kernel has killed because the memory limit was reached.
  uint64_t OutOfMemoryKills() const;
  // How often a process or thread could not be made because of the limit.
  uint64_t RefusedProcesses() const;

  // Removes the groups that dead Rekindles have left empty.
  static void RemoveLeftovers();

 private:
  Cgroup() = default;
  bool unified_ = false;
  std::vector<std::string> folders_;  // memory, cpu, pids (v1), or the one (v2)
  std::vector<UniqueFd> processes_;
};

}  // namespace rekindle::restore
