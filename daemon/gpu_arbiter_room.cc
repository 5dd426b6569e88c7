// Who is parked so that another job has room, and whether waiting for that can help.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/human_units.h"
#include "daemon/gpu_arbiter.h"
#include "daemon/gpu_arbiter_parts.h"

namespace rekindle::daemon {
namespace {

// Of the search for who makes room; enough for an exact answer in any case but a contrived one.
constexpr int kSearchSteps = 20000;

// What parking a job would bring.
struct Offer {
  std::vector<uint64_t> frees;  // on each device that is short
  uint64_t host = 0;            // that it takes
};

// Finds the first set of offers, in the order of preference of their own order, that frees enough and that
// the host has room for.
class OfferSearch {
 public:
  OfferSearch(absl::Span<const Offer> offers, size_t devices) : offers_(offers) {
    rest_.assign(offers.size() + 1, std::vector<uint64_t>(devices, 0));
    for (size_t i = offers.size(); i-- > 0;) {
      for (size_t d = 0; d < devices; ++d) rest_[i][d] = rest_[i + 1][d] + offers[i].frees[d];
    }
  }

  // Indices of offers, or none.
  std::vector<size_t> Find(const std::vector<uint64_t>& shortage, uint64_t host_room) {
    if (!Try(0, shortage, host_room)) return {};
    // Smaller ones that were taken before a larger one that suffices need not go.
    for (size_t i = taken_.size(); i-- > 0;) {
      std::vector<size_t> without = taken_;
      without.erase(without.begin() + static_cast<ptrdiff_t>(i));
      if (Suffices(without, shortage)) taken_ = std::move(without);
    }
    return taken_;
  }

 private:
  bool Try(size_t next, const std::vector<uint64_t>& shortage, uint64_t host_room) {
    if (std::all_of(shortage.begin(), shortage.end(), [](uint64_t bytes) { return bytes == 0; })) return true;
    if (++steps_ > kSearchSteps) return false;
    for (size_t d = 0; d < shortage.size(); ++d) {
      if (rest_[next][d] < shortage[d]) return false;
    }
    const Offer& offer = offers_[next];
    if (offer.host <= host_room) {
      std::vector<uint64_t> left = shortage;
      for (size_t d = 0; d < left.size(); ++d) left[d] -= std::min(left[d], offer.frees[d]);
      taken_.push_back(next);
      if (Try(next + 1, left, host_room - offer.host)) return true;
      taken_.pop_back();
    }
    return Try(next + 1, shortage, host_room);
  }

  bool Suffices(const std::vector<size_t>& taken, const std::vector<uint64_t>& shortage) const {
    for (size_t d = 0; d < shortage.size(); ++d) {
      uint64_t freed = 0;
      for (size_t i : taken) freed += offers_[i].frees[d];
      if (freed < shortage[d]) return false;
    }
    return true;
  }

  const absl::Span<const Offer> offers_;
  std::vector<std::vector<uint64_t>> rest_;  // what all offers from one on free
  std::vector<size_t> taken_;
  int steps_ = 0;
};

}  // namespace

uint64_t GpuArbiter::HostRoom() const {
  return options_.host_budget - std::min(options_.host_budget, host_bytes_);
}

std::vector<GpuArbiter::JobPtr> GpuArbiter::ChooseVictims(const Request& request, const DeviceBytes& shortage,
                                                          uint64_t host_room, Candidates candidates) const {
  std::set<const Job*> wanted;
  for (const Request* other : queue_) wanted.insert(other->job.get());
  std::set<JobPtr> may_go;
  for (const auto& [pid, job] : jobs_) {
    if (job == request.job || job->IsKinOf(*request.job) || request.failed.count(job) > 0) continue;
    if (job->pinned || KinThat(*job, [](const Job& kin) { return kin.pinned; })) continue;
    const bool now = job->state == GpuJobState::kResident && job->leases == 0 &&
                     !KinThat(*job, [](const Job& kin) { return kin.leases > 0 || kin.moving(); });
    if (!now && (candidates == Candidates::kNow || job->state == GpuJobState::kParked)) continue;
    may_go.insert(job);
  }
  std::vector<std::tuple<bool, uint64_t, JobPtr>> jobs;
  for (const JobPtr& job : may_go) {
    // It goes with the one that it is part of.
    if (std::any_of(may_go.begin(), may_go.end(), [&](const JobPtr& other) { return job->IsUnder(*other); }))
      continue;
    uint64_t use = job->use;
    bool is_wanted = wanted.count(job.get()) > 0;
    for (const JobPtr& part : may_go) {
      if (!part->IsUnder(*job)) continue;
      use = std::max(use, part->use);
      is_wanted |= wanted.count(part.get()) > 0;
    }
    const bool helps = std::any_of(shortage.begin(), shortage.end(),
                                   [&job](const auto& device) { return On(device.first, job->bytes) > 0; });
    // One that somebody waits for is as good as used.
    if (helps) jobs.emplace_back(is_wanted, use, job);
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });

  std::vector<Offer> offers;
  for (const auto& [is_wanted, use, job] : jobs) {
    Offer& offer = offers.emplace_back();
    for (const auto& [uuid, bytes] : shortage) offer.frees.push_back(On(uuid, job->bytes));
    offer.host = HostBytes(*job);
  }
  std::vector<uint64_t> needed;
  for (const auto& [uuid, bytes] : shortage) needed.push_back(bytes);
  std::vector<JobPtr> victims;
  for (size_t i : OfferSearch(offers, needed.size()).Find(needed, host_room))
    victims.push_back(std::get<2>(jobs[i]));
  return victims;
}

absl::Status GpuArbiter::CheckFits(const Job& job) const {
  if (job.state == GpuJobState::kResident) return absl::OkStatus();
  for (const auto& [uuid, needed] : job.bytes) {
    auto it = totals_.find(uuid);
    if (it == totals_.end() || needed <= it->second) continue;
    return absl::ResourceExhaustedError(absl::StrCat(job.name(), " needs ", FormatBytes(needed), " on ", uuid,
                                                     ", which has ", FormatBytes(it->second),
                                                     " in all: it can't ever be resumed there"));
  }
  return absl::OkStatus();
}

absl::Status GpuArbiter::CheckHope(Request& request, const DeviceBytes& shortage) {
  const Job& job = *request.job;
  for (const auto& [uuid, needed] : job.bytes) {
    uint64_t pinned = 0;
    for (const auto& [pid, other] : jobs_) {
      if (!other->pinned || other->state != GpuJobState::kResident) continue;
      const bool counted = std::any_of(jobs_.begin(), jobs_.end(), [&other = other](const auto& above) {
        return above.second->pinned && other->IsUnder(*above.second);
      });
      if (!counted) pinned += On(uuid, other->bytes);
    }
    auto total = totals_.find(uuid);
    if (total == totals_.end() || pinned == 0 || needed + pinned <= total->second) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(job.name(), " can't be resumed while other jobs are pinned: ", DescribeDevices(request),
                     ". Unpin one of them (`rekindle gpu release JOB --unpin`)"));
  }

  uint64_t parked = 0;
  bool moving = false;
  for (const auto& [pid, other] : jobs_) {
    if (other->state == GpuJobState::kParked) parked += other->host_charge;
    moving |= other->moving();
  }
  const uint64_t room = options_.host_budget - std::min(options_.host_budget, parked);
  const bool any_way = !ChooseVictims(request, shortage, UINT64_MAX, Candidates::kIfReleased).empty();
  request.host_short = !ChooseVictims(request, shortage, UINT64_MAX, Candidates::kNow).empty();
  request.host_stuck = any_way && ChooseVictims(request, shortage, room, Candidates::kIfReleased).empty();
  request.host_short |= request.host_stuck;
  // Whoever is resumed elsewhere gives host memory back.
  if (!request.host_stuck || moving) return absl::OkStatus();
  for (const Request* other : queue_) {
    if (other != &request && other->turn && !other->host_stuck) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      job.name(), " can't be resumed, since who would make room can't be parked. ", DescribeHost()));
}

}  // namespace rekindle::daemon
