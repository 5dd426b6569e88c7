#include "restore/standby.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/timed_await.h"
#include "restore/cgroup.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kShareOfMemory = 32;
// What one takes beside its working set: CRIU that waits, its sandbox, page tables.
constexpr uint64_t kOwnBytes = uint64_t{6} << 20;
// An image that was asked for once does not displace others' copies.
constexpr uint32_t kUsesToDisplace = 2;
// From so many uses on it is known how often an image is asked for; what was not asked for in so many times
// as long makes room for it.
constexpr uint32_t kUsesToKnowHowOften = 4;
constexpr int kFarMoreOften = 8;
// How often the machine's memory is looked at while some stand by.
constexpr absl::Duration kLookAtMemory = absl::Seconds(10);
constexpr absl::Duration kAfterFailure = absl::Seconds(5);
// After a start, in which the copy that was started has the machine for itself.
constexpr absl::Duration kQuiet = absl::Milliseconds(40);

bool Wait(int done, int cancel) {
  pollfd entries[2] = {{done, POLLIN, 0}, {cancel, POLLIN, 0}};
  while (::poll(entries, 2, -1) < 0 && errno == EINTR) {
  }
  return entries[0].revents != 0;
}

}  // namespace

StandbyKind KindOf(const CloneOptions& options) {
  return {options.image, options.network, options.limits.any(), options.fill};
}

StandbyBounds StandbyBounds::OfThisMachine() {
  StandbyBounds bounds;
  bounds.bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                 static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) / kShareOfMemory;
  return bounds;
}

StandbyPool::StandbyPool(Make make, size_t size, const StandbyBounds& bounds)
    : make_(std::move(make)), size_(size), bounds_(bounds) {
  keeper_ = std::thread([this] { Keep(); });
}

StandbyPool::~StandbyPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = changed_ = true;
  }
  keeper_.join();
}

std::optional<absl::StatusOr<CloneResult>> StandbyPool::Claim(const CloneOptions& options) {
  // One of them may have died while it waited.
  for (bool any = true; any;) {
    std::optional<absl::StatusOr<CloneResult>> claimed = ClaimOne(options, &any);
    if (claimed) return claimed;
  }
  return std::nullopt;
}

std::optional<absl::StatusOr<CloneResult>> StandbyPool::ClaimOne(const CloneOptions& options, bool* any) {
  const StandbyKind kind = KindOf(options);
  Copy* copy = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    auto parked = std::find_if(copies_.begin(), copies_.end(),
                               [&](const Copy& c) { return c.state == State::kParked && c.kind == kind; });
    *any = parked != copies_.end();
    if (!*any) return std::nullopt;
    copy = &*parked;
    copy->claim = options;
    copy->state = State::kClaimed;
    quiet_until_ = SteadyNow() + kQuiet;
    if (auto demand = wanted_.find(kind); demand != wanted_.end()) {
      demand->second.NoteUse(SteadyNow());
    }
  }
  const bool done = Wait(copy->done.get(), options.cancel_fd);
  if (!done) {
    ::eventfd_write(copy->cancel.get(), 1);
    Wait(copy->done.get(), -1);
  }
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<CloneResult> result = std::move(*copy->result);
  copy->collected = true;
  changed_ = true;
  if (result.ok()) return result;
  if (!done) return absl::CancelledError("restore cancelled");
  Log(LogLevel::kWarning,
      absl::StrCat("a copy that stood by could not be started, another one is: ", result.status().message()));
  return std::nullopt;
}

void StandbyPool::Demand::NoteUse(absl::Time now) {
  if (uses == 1) apart = now - last_used;
  if (uses > 1) apart = (3 * apart + (now - last_used)) / 4;
  last_used = now;
  ++uses;
}

absl::Duration StandbyPool::Demand::SparesOthersFor(const StandbyBounds& bounds) const {
  if (uses < kUsesToDisplace) return absl::InfiniteDuration();
  if (uses < kUsesToKnowHowOften) return bounds.not_displaced;
  return std::min(bounds.not_displaced, std::max(bounds.never_displaced, kFarMoreOften * apart));
}

void StandbyPool::Want(const CloneOptions& options, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  Demand& demand = wanted_[KindOf(options)];
  demand.bytes = bytes;
  demand.NoteUse(SteadyNow());
  quiet_until_ = SteadyNow() + kQuiet;
  changed_ = true;
}

void StandbyPool::Forget(const std::string& image) {
  absl::MutexLock lock(&mutex_);
  for (auto& [kind, demand] : wanted_) {
    if (kind.image == image) demand.last_used = absl::InfinitePast();
  }
  changed_ = true;
}

absl::StatusOr<CloneOptions> StandbyPool::ParkUntilClaimed(Copy& copy) {
  absl::MutexLock lock(&mutex_);
  if (copy.state == State::kMaking) copy.state = State::kParked;
  changed_ = true;
  auto go_on = [&copy] { return copy.state != State::kParked; };
  mutex_.Await(absl::Condition(&go_on));
  if (copy.state != State::kClaimed) return absl::CancelledError("nobody wants this copy any more");
  return copy.claim;
}

void StandbyPool::Run(Copy& copy) {
  absl::StatusOr<CloneResult> result = CatchNoMoreThreads(
      [&] { return make_(copy.kind, copy.cancel.get(), [&] { return ParkUntilClaimed(copy); }); });
  absl::MutexLock lock(&mutex_);
  if (copy.state != State::kClaimed) copy.collected = true;
  if (copy.state == State::kMaking || copy.state == State::kParked) {
    // Those who start one themselves are told why it fails, if it does.
    Log(LogLevel::kWarning, absl::StrCat("making a copy that stands by: ", result.status().message()));
  }
  if (!result.ok() && copy.state != State::kCancelled) {
    auto demand = wanted_.find(copy.kind);
    if (demand != wanted_.end()) demand->second.not_before = SteadyNow() + kAfterFailure;
  }
  copy.result = std::move(result);
  copy.state = State::kEnded;
  changed_ = true;
  ::eventfd_write(copy.done.get(), 1);
}

void StandbyPool::Cancel(Copy& copy) {
  if (copy.state != State::kMaking && copy.state != State::kParked) return;
  copy.state = State::kCancelled;
  ::eventfd_write(copy.cancel.get(), 1);
}

void StandbyPool::DropWhatIsNotWanted(absl::Time now) {
  for (auto demand = wanted_.begin(); demand != wanted_.end();) {
    if (!stop_ && demand->second.last_used + bounds_.unused_for > now) {
      ++demand;
      continue;
    }
    for (Copy& copy : copies_) {
      if (copy.kind == demand->first) Cancel(copy);
    }
    demand = wanted_.erase(demand);
  }
  if (auto available = Cgroup::AvailableMemory(); available.ok() && *available < bounds_.least_available)
    DropOneOlderThan(now);
}

uint64_t StandbyPool::CostOf(const StandbyKind& kind) const {
  auto demand = wanted_.find(kind);
  return kOwnBytes + (demand == wanted_.end() ? 0 : demand->second.bytes);
}

bool StandbyPool::DropOneOlderThan(absl::Time before) {
  Copy* oldest = nullptr;
  absl::Time used = before;
  for (Copy& copy : copies_) {
    auto demand = wanted_.find(copy.kind);
    if (copy.state != State::kParked || demand == wanted_.end() || demand->second.last_used >= used) continue;
    oldest = &copy;
    used = demand->second.last_used;
  }
  if (oldest == nullptr) return false;
  Cancel(*oldest);
  // Its image gets others when it is asked for again.
  wanted_[oldest->kind].uses = 0;
  return true;
}

bool StandbyPool::Lacks(const StandbyKind& kind, const Demand& demand, absl::Time now) const {
  const auto there = std::count_if(copies_.begin(), copies_.end(), [&kind](const Copy& copy) {
    return copy.kind == kind && copy.state == State::kParked;
  });
  return static_cast<size_t>(there) < size_ && demand.not_before <= now && demand.uses > 0;
}

void StandbyPool::MakeOneMore(absl::Time now) {
  if (now < quiet_until_) return;
  uint64_t bytes = 0;
  for (const Copy& copy : copies_) {
    // One after the other: those who wait for a copy of their own come first. What goes makes room.
    if (copy.state == State::kMaking || copy.state == State::kCancelled) return;
    bytes += CostOf(copy.kind);
  }
  std::vector<std::pair<absl::Time, StandbyKind>> lacking;
  for (const auto& [kind, demand] : wanted_) {
    if (Lacks(kind, demand, now)) lacking.emplace_back(demand.last_used, kind);
  }
  std::sort(lacking.rbegin(), lacking.rend());  // what was asked for last comes first
  for (const auto& [used, kind] : lacking) {
    if (CostOf(kind) > bounds_.bytes) continue;
    if (bytes + CostOf(kind) > bounds_.bytes) {
      if (DropOneOlderThan(std::min(used, now - wanted_[kind].SparesOthersFor(bounds_)))) return;
      continue;
    }
    auto available = Cgroup::AvailableMemory();
    if (!available.ok() || *available < bounds_.least_available) return;
    Copy& copy = copies_.emplace_back();
    copy.kind = kind;
    copy.cancel.Reset(::eventfd(0, EFD_CLOEXEC));
    copy.done.Reset(::eventfd(0, EFD_CLOEXEC));
    if (!copy.cancel.valid() || !copy.done.valid()) {
      copies_.pop_back();
      return;
    }
    try {
      copy.thread = std::thread([this, &copy] { Run(copy); });
    } catch (const std::system_error& e) {
      Log(LogLevel::kWarning,
          absl::StrCat("making a copy that stands by: no thread could be made: ", e.what()));
      copies_.pop_back();
      wanted_[kind].not_before = now + kAfterFailure;
    }
    return;
  }
}

absl::Time StandbyPool::NextDue(absl::Time looked) const {
  absl::Time due = quiet_until_ > looked ? quiet_until_ : absl::InfiniteFuture();
  if (!copies_.empty() || !wanted_.empty()) due = std::min(due, looked + kLookAtMemory);
  for (const auto& [kind, demand] : wanted_) {
    due = std::min(due, demand.last_used + bounds_.unused_for);
    if (demand.not_before > looked) due = std::min(due, demand.not_before);
  }
  return due;
}

void StandbyPool::Keep() {
  absl::Time looked = SteadyNow();
  for (;;) {
    std::list<Copy> ended;  // their threads are waited for without the lock
    {
      absl::MutexLock lock(&mutex_);
      if (stop_ && copies_.empty()) return;
      AwaitUntil(mutex_, absl::Condition(&changed_), Deadline(NextDue(looked) - SteadyNow()));
      changed_ = false;
      looked = SteadyNow();  // one moment for all: what comes due between two would be missed
      DropWhatIsNotWanted(looked);
      for (auto copy = copies_.begin(); copy != copies_.end();) {
        auto next = std::next(copy);
        if (copy->state == State::kEnded && copy->collected) ended.splice(ended.end(), copies_, copy);
        copy = next;
      }
      if (!stop_) MakeOneMore(looked);
    }
    for (Copy& copy : ended) copy.thread.join();
  }
}

}  // namespace rekindle::restore
