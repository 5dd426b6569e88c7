// What the files of GpuArbiter share: gpu_arbiter.cc (which jobs there are, whose turn it is),
// gpu_arbiter_leases.cc (a request from its begin to its end, and the moves that it asks for),
// gpu_arbiter_room.cc (who makes room) and gpu_arbiter_report.cc (what is told of all that). Nobody else
// includes this.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "daemon/gpu_arbiter.h"

namespace rekindle::daemon {

inline uint64_t Total(const DeviceBytes& bytes) {
  uint64_t total = 0;
  for (const auto& [uuid, on_device] : bytes) total += on_device;
  return total;
}

inline uint64_t On(const std::string& uuid, const DeviceBytes& bytes) {
  auto it = bytes.find(uuid);
  return it == bytes.end() ? 0 : it->second;
}

inline std::vector<std::string> DevicesOf(const DeviceBytes& bytes) {
  std::vector<std::string> devices;
  for (const auto& [uuid, on_device] : bytes) devices.push_back(uuid);
  return devices;
}

inline bool SharesDevice(const std::vector<std::string>& devices, const DeviceBytes& bytes) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const std::string& uuid) { return bytes.count(uuid) > 0; });
}

inline absl::Status UnknownJob(pid_t pid) {
  return absl::NotFoundError(
      absl::StrCat("no CUDA job with PID ", pid, " is known: `rekindle gpu ps` lists those that are"));
}

struct GpuArbiter::Job {
  explicit Job(const GpuJobId& job) : id(job) {}

  bool moving() const { return state == GpuJobState::kParking || state == GpuJobState::kResuming; }
  // Of LeaseKind::kLasting, and without an ID.
  int unnamed() const { return leases - held - static_cast<int>(ids.size()); }
  std::string name() const { return absl::StrCat("job ", id.pid); }
  // Part of the other one's process tree.
  bool IsUnder(const Job& other) const {
    return std::find(ancestors.begin(), ancestors.end(), other.id.pid) != ancestors.end();
  }
  bool IsKinOf(const Job& other) const { return IsUnder(other) || other.IsUnder(*this); }

  const GpuJobId id;
  DeviceBytes bytes;
  bool anywhere = false;  // these, or less, are on one of the GPUs, or on some
  GpuJobState state = GpuJobState::kResident;
  int leases = 0;  // `held` of them LeaseKind::kHeld
  int held = 0;
  // Who asked for a lease with an ID, of those that have been given it.
  struct Claims {
    int unconfirmed = 0;  // may still be told of it, or go before that
    bool known = false;   // to one of the others
  };
  std::map<std::string, Claims> ids;  // of the others as many have these
  bool pinned = false;
  bool gone = false;  // no longer in jobs_
  bool ancestors_known = false;
  std::vector<pid_t> ancestors;
  uint64_t use = 0;          // the larger the later
  uint64_t host_charge = 0;  // its part of host_bytes_: HostBytes() unless it is resident
};

struct GpuArbiter::Request {
  explicit Request(const LeaseOptions& lease_options) : options(lease_options) {
    absl::Duration time = options.timeout;
    // The wall clock may be set while we wait.
    if (options.deadline != absl::InfiniteFuture()) time = std::min(time, options.deadline - absl::Now());
    limit = time;
  }

  absl::Duration Left() const { return limit - absl::Seconds(since.seconds()); }

  const LeaseOptions& options;
  const Stopwatch since;
  absl::Duration limit;
  JobPtr job;
  std::vector<std::string> devices;  // of the job, when it was last looked at
  bool turn = false;                 // no request that comes before it shares one of them
  bool busy = false;                 // moves something, on its turn
  bool nudged = false;               // something has changed: look anew
  bool cancelled = false;
  bool waited = false;
  bool alive = false;       // looked at since the last wait
  bool swept = false;       // the dead were removed, lately
  bool squeeze = false;     // there seemed to be room and was none: somebody must go
  bool host_short = false;  // host memory would help
  bool host_stuck = false;  // nothing else would
  SteadyClock::time_point reread_at{};
  std::map<JobPtr, absl::Status> failed;  // could not be parked, lately
  FreeDeviceMemory free;
  absl::Status last_error;
  bool resumed = false;
  std::vector<pid_t> parked;
};

}  // namespace rekindle::daemon
