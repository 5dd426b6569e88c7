#include "restore/kept_pager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cgroup_memory.h"
#include "base/log.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kMostDefaultCacheBytes = uint64_t{1} << 30;
constexpr uint64_t kPartForCache = 4;

}  // namespace

uint64_t DefaultCacheBytes() {
  static const uint64_t bytes = [] {
    const absl::StatusOr<uint64_t> available = OwnAvailableMemoryBytes();
    return available.ok() ? std::min(kMostDefaultCacheBytes, *available / kPartForCache)
                          : kMostDefaultCacheBytes;
  }();
  return bytes;
}

PagerPlace KeptPager::PlaceFor(const std::string& store) const {
  return {runtime_directory_, store, cache_bytes_ ? *cache_bytes_ : DefaultCacheBytes()};
}

bool KeptPager::IsKept() const {
  absl::MutexLock lock(&kept_mutex_);
  return kept_ && !kept_->HasEnded();
}

void KeptPager::Keep(std::optional<PagerClient> client) {
  absl::MutexLock lock(&kept_mutex_);
  kept_ = std::move(client);
}

absl::StatusOr<PagerClient> KeptPager::Connect(const PagerPlace& place) {
  absl::StatusOr<PagerClient> client = PagerClient::ConnectToRunning(place);
  if (client.ok() && IsKept()) return client;
  bool found = false;  // one that runs, and may have a cache of another size
  {
    absl::MutexLock lock(&mutex_);
    bool is_new = false;
    if (!client.ok()) {
      Subprocess started;
      client = PagerClient::Connect(place, &started);
      is_new = started.running();
      if (is_new) {
        WaitFor(std::move(started));
        Keep(std::nullopt);
      }
    }
    if (client.ok() && !IsKept()) {
      // One that makes sure that nobody wants it has another name for a moment.
      Subprocess started;
      auto kept = PagerClient::Connect(place, &started);
      if (started.running()) WaitFor(std::move(started));
      found = kept.ok() && !is_new;
      Keep(kept.ok() ? std::optional(*std::move(kept)) : std::nullopt);
    }
  }
  // Not under the lock: it may be busy.
  if (found && cache_bytes_) {
    auto resized = client->Resize(*cache_bytes_);
    if (!resized.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("giving the pager that runs a cache of ", *cache_bytes_,
                                           " bytes: ", resized.status().message()));
    }
  }
  return client;
}

void KeptPager::WaitFor(Subprocess pager) {
  waiters_.erase(std::remove_if(waiters_.begin(), waiters_.end(),
                                [](const auto& other) { return other->has_ended.load(); }),
                 waiters_.end());
  auto waiter = std::make_unique<Waiter>(std::move(pager));
  const absl::Status waits = waiter->thread.Start([waiter = waiter.get()] {
    const auto woken = waiter->thread.Await(waiter->pager.pidfd());
    if (woken.ok() && *woken == StoppableThread::Woken::kReady) {
      waiter->pager.Wait().IgnoreError();
    } else {
      waiter->pager.Release();
    }
    waiter->has_ended = true;
  });
  if (waits.ok()) return waiters_.push_back(std::move(waiter));
  waiter->pager.Release();
  Log(LogLevel::kWarning, absl::StrCat("nobody waits for the end of the pager: ", waits.message()));
}

}  // namespace rekindle::restore
