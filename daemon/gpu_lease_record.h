// Which jobs leases were given of, from the least recently used, in one file that a daemon leaves to the one
// after it: RUNTIME/gpu/leases.json. It goes with a reboot, as the processes do.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "daemon/gpu_arbiter.h"

namespace rekindle::daemon {

struct GpuJobLeases {
  GpuJobId job;
  int leases = 0;
  bool pinned = false;
  std::set<std::string> ids = {};  // of those leases that have one
  uint64_t pid_namespace = 0;      // in which `job` has its PID, by its inode; 0: not known
  friend bool operator==(const GpuJobLeases&, const GpuJobLeases&) = default;
};

// Thread-compatible.
class GpuLeaseRecord {
 public:
  explicit GpuLeaseRecord(std::string path) : path_(std::move(path)) {}

  // Has the file for this object alone, until it goes: two daemons of one runtime folder would overwrite each
  // other's leases. Cheap once it has it. Unavailable: another one has it, which the message names; any other
  // error: that can't be told now.
  absl::Status Take();
  // Does another one have it?
  bool IsTakenByOther() const;

  // What the file says, the dead included; nothing where there is no file. DataLoss: it is damaged;
  // FailedPrecondition: a newer version has written it; any other error: it can't be read now.
  absl::StatusOr<std::vector<GpuJobLeases>> Read() const;
  // Moves the file out of the way of the next Write, for people to read; returns where it is then.
  absl::StatusOr<std::string> SetAside() const;
  // Makes the file, and its folder, if need be. Does nothing when the file says so already. It outlives this
  // process, but no reboot. After an error the file is as it was, and the next call tries again.
  // ResourceExhausted: its file system is full.
  absl::Status Write(const std::vector<GpuJobLeases>& jobs);

 private:
  std::string LockPath() const;

  const std::string path_;
  UniqueFd lock_;
  std::optional<std::vector<GpuJobLeases>> written_;  // nothing: not known
};

}  // namespace rekindle::daemon
