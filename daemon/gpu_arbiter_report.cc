// What is told of jobs, requests and memory: errors, and snapshots.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/human_units.h"
#include "daemon/gpu_arbiter.h"
#include "daemon/gpu_arbiter_parts.h"

namespace rekindle::daemon {
namespace {

// How many jobs a message lists.
constexpr size_t kListed = 8;

std::string ListSome(const std::vector<std::string>& items) {
  const size_t listed = std::min(items.size(), kListed);
  std::string text = absl::StrJoin(items.begin(), items.begin() + static_cast<ptrdiff_t>(listed), ", ");
  if (listed < items.size()) absl::StrAppend(&text, " and ", items.size() - listed, " more");
  return text;
}

}  // namespace

absl::Status GpuArbiter::CheckWanted(const Request& request) const {
  const Job& job = *request.job;
  if (stopped_) {
    return absl::UnavailableError(absl::StrCat("no lease of ", job.name(), ": the daemon is stopping"));
  }
  if (job.gone) return absl::NotFoundError(absl::StrCat("no lease of ", job.name(), ": it has ended"));
  if (request.cancelled) {
    return absl::CancelledError(absl::StrCat("the lease of ", job.name(), " was cancelled while it waited"));
  }
  if (request.Left() > absl::ZeroDuration()) return absl::OkStatus();
  std::string why;
  if (!request.turn) {
    why = DescribeQueue(request);
  } else if (job.moving()) {
    why = "it is being moved";
  } else if (job.state == GpuJobState::kResident) {
    why = "it got onto its GPU too late; ask again";
  } else if (request.free.bytes.empty()) {
    why = "it is parked, and to resume it takes time";
  } else {
    why = absl::StrCat(DescribeDevices(request), ". Release, unpin or park one of them, or wait longer");
    if (request.host_short) absl::StrAppend(&why, ". ", DescribeHost());
  }
  for (const auto& [victim, error] : request.failed)
    absl::StrAppend(&why, "; ", victim->name(), " could not be parked: ", error.message());
  if (!request.last_error.ok())
    absl::StrAppend(&why, "; the last try failed: ", request.last_error.message());
  return absl::DeadlineExceededError(absl::StrCat("no lease of ", job.name(), " within ",
                                                  FormatSeconds(request.since.seconds()), ": ", why));
}

std::string GpuArbiter::DescribeQueue(const Request& request) const {
  std::vector<std::string> earlier;
  for (const Request* other : queue_) {
    if (other == &request) break;
    if (SharesDevice(other->devices, request.job->bytes)) earlier.push_back(other->job->name());
  }
  if (earlier.empty()) return "another request is at work on one of its GPUs";
  return absl::StrCat("requests that came earlier wait for its GPUs: for ", ListSome(earlier));
}

std::string GpuArbiter::DescribeDevices(const Request& request) const {
  std::vector<std::string> devices;
  for (const auto& [uuid, needed] : request.job->bytes) {
    const uint64_t free = On(uuid, request.free.bytes);
    std::vector<std::string> holders;
    uint64_t known = free;
    for (const auto& [pid, job] : jobs_) {
      const uint64_t bytes = On(uuid, job->bytes);
      if (bytes == 0 || job->state == GpuJobState::kParked || job == request.job) continue;
      known += bytes;
      std::string holder = absl::StrCat(job->name(), " has ", FormatBytes(bytes));
      if (job->leases > 0)
        absl::StrAppend(&holder, ", leased ", job->leases, job->leases == 1 ? " time" : " times");
      if (job->pinned) absl::StrAppend(&holder, ", pinned");
      if (job->moving()) absl::StrAppend(&holder, ", being moved");
      holders.push_back(std::move(holder));
    }
    auto total = totals_.find(uuid);
    if (total != totals_.end() && total->second > known)
      holders.push_back(absl::StrCat("jobs that were never leased, and other programs, have ",
                                     FormatBytes(total->second - known)));
    devices.push_back(absl::StrCat(uuid, " has ", FormatBytes(free), " free of the ", FormatBytes(needed),
                                   " that it needs", holders.empty() ? "" : " (",
                                   absl::StrJoin(holders, "; "), holders.empty() ? "" : ")"));
  }
  return absl::StrJoin(devices, "; ");
}

std::string GpuArbiter::DescribeHost() const {
  std::vector<JobPtr> charged;
  for (const auto& [pid, job] : jobs_) {
    if (job->host_charge > 0) charged.push_back(job);
  }
  std::stable_sort(charged.begin(), charged.end(),
                   [](const JobPtr& a, const JobPtr& b) { return a->host_charge > b->host_charge; });
  std::vector<std::string> holders;
  for (const JobPtr& job : charged)
    holders.push_back(absl::StrCat(job->name(), " has ", FormatBytes(job->host_charge)));
  return absl::StrCat("Parked jobs may have ", FormatBytes(options_.host_budget), " of host memory and have ",
                      FormatBytes(host_bytes_), holders.empty() ? "" : ": ", ListSome(holders),
                      ". End one of them, resume it where there is room, or raise the budget");
}

std::vector<GpuJobSnapshot> GpuArbiter::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  std::vector<GpuJobSnapshot> snapshots;
  for (const auto& [pid, job] : jobs_) {
    GpuJobSnapshot& snapshot = snapshots.emplace_back();
    snapshot.id = job->id;
    snapshot.state = job->state;
    snapshot.bytes = job->bytes;
    snapshot.leases = job->leases;
    snapshot.held = job->held;
    for (const auto& [lease, claims] : job->ids) snapshot.ids.insert(lease);
    snapshot.pinned = job->pinned;
    snapshot.use = job->use;
    int position = 0;
    for (const Request* request : queue_) {
      if (SharesDevice(request->devices, job->bytes)) ++position;
      if (request->job != job) continue;
      ++snapshot.waiters;
      if (snapshot.position == 0) snapshot.position = std::max(position, 1);
    }
  }
  return snapshots;
}

GpuArbiterCounters GpuArbiter::counters() const {
  absl::MutexLock lock(&mutex_);
  return counters_;
}

uint64_t GpuArbiter::host_bytes() const {
  absl::MutexLock lock(&mutex_);
  return host_bytes_;
}

}  // namespace rekindle::daemon
