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

absl::StatusOr<PagerClient> KeptPager::Connect(const PagerPlace& place) {
  absl::StatusOr<PagerClient> client = PagerClient::ConnectToRunning(place);
  if (client.ok() && is_kept_) return client;
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
        kept_.reset();
        is_kept_ = false;
      }
    }
    if (client.ok() && !kept_) {
      // One that makes sure that nobody wants it has another name for a moment.
      Subprocess started;
      auto kept = PagerClient::Connect(place, &started);
      if (started.running()) WaitFor(std::move(started));
      if (kept.ok()) kept_.emplace(*std::move(kept));
      is_kept_ = kept_.has_value();
      found = is_kept_ && !is_new;
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
  auto waiter = std::make_unique<StoppableThread>();
  const auto waited_for = std::make_shared<Subprocess>(std::move(pager));
  const absl::Status waits = waiter->Start([waiter = waiter.get(), waited_for] {
    const auto woken = waiter->Await(waited_for->pidfd());
    if (woken.ok() && *woken == StoppableThread::Woken::kReady) {
      waited_for->Wait().IgnoreError();
    } else {
      waited_for->Release();
    }
  });
  if (waits.ok()) return waiters_.push_back(std::move(waiter));
  waited_for->Release();
  Log(LogLevel::kWarning, absl::StrCat("nobody waits for the end of the pager: ", waits.message()));
}

}  // namespace rekindle::restore
