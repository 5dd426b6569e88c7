// What the pager does while nobody waits for it: the background fill, and what makes the next starts faster.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "restore/lazy_clone.h"
#include "restore/pager.h"

namespace rekindle::restore {
namespace {

// Of the cache's size, what working sets may take in one piece each, beyond it.
constexpr uint64_t kPrefillShare = 4;
constexpr absl::Duration kLookWhetherStarting = absl::Milliseconds(10);
// A pager that has just begun is wanted for a copy, as a rule, and where there is one there are more.
constexpr absl::Duration kQuietBeforeWarming = absl::Seconds(1);

void GiveWay() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kBackgroundNice); }

}  // namespace

std::vector<std::shared_ptr<LazyClone>> Pager::Clones() {
  std::vector<std::shared_ptr<LazyClone>> clones;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, clone] : clones_) clones.push_back(clone);
  return clones;
}

void Pager::TickClones() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Pager::HasClones));
    }
    if (stop_) return;
    for (const std::shared_ptr<LazyClone>& clone : Clones()) clone->Tick();
    absl::SleepFor(kTick);
  }
}

void Pager::FillInBackground() {
  GiveWay();
  for (bool more = false; !stop_;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Pager::HasClones));
      // Much of what it may do now is told by nobody.
      if (!more) AwaitUntil(mutex_, absl::Condition(&filler_woken_), Deadline(kTick));
      filler_woken_ = false;
    }
    more = false;
    // Anew each time: those that have come meanwhile have their turn too.
    for (const std::shared_ptr<LazyClone>& clone : Clones()) more |= clone->FillSome();
  }
}

uint64_t Pager::MostPrefillBytes() const { return cache_->Stats().budget_bytes / kPrefillShare; }

absl::StatusOr<LazyImage::PrefillMade> Pager::PrefillOf(const std::shared_ptr<LazyImage>& image) {
  const uint64_t most = MostPrefillBytes();
  RK_ASSIGN_OR_RETURN(LazyImage::PrefillMade done, image->Prefill(*store_, *cache_, most));
  std::vector<std::shared_ptr<LazyImage>> others;  // least recently used first
  uint64_t bytes = image->prefill_bytes();
  {
    absl::MutexLock lock(&mutex_);
    sets_loaded_ += done.loaded ? 1 : 0;
    sets_made_ += done.made ? 1 : 0;
    if (done.made) to_keep_.push_back({image, done.set});
    for (const std::string& digest : image_order_) {
      const std::shared_ptr<LazyImage>& other = images_.at(digest);
      if (other != image) others.push_back(other);
    }
  }
  for (const std::shared_ptr<LazyImage>& other : others) bytes += other->prefill_bytes();
  for (size_t i = 0; i < others.size() && bytes > most; ++i) {
    bytes -= others[i]->prefill_bytes();
    others[i]->DropPrefill();
  }
  return done;
}

void Pager::PrefetchFor(std::shared_ptr<LazyClone> clone) {
  absl::MutexLock lock(&mutex_);
  prefetches_.push_back({std::move(clone), ""});
}

void Pager::Expect(const std::string& image) {
  NoteStart();
  bool open;
  {
    absl::MutexLock lock(&mutex_);
    open = images_.count(image) > 0;
    prefetches_.push_back({nullptr, image});
  }
  if (open) return;
  // The disk is at it while the image is being opened.
  auto note = store_->OpenNote(image, store::kWorkingSetPagesNote);
  if (note.ok() && (*note)->bytes() <= MostPrefillBytes()) (*note)->WillNeed();
}

void Pager::PrefetchInBackground() {
  for (;;) {
    Prefetched next;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Pager::HasPrefetches));
      if (stop_) return;
      next = std::move(prefetches_.front());
      prefetches_.pop_front();
    }
    if (next.clone != nullptr) {
      next.clone->Prefetch();
      continue;
    }
    // What is wrong is found again, and told, when a copy is attached.
    auto image = OpenImage(next.image);
    if (image.ok() && (*image)->Learned()) PrefillOf(*image).status().IgnoreError();
  }
}

void Pager::NoteStart() {
  absl::MutexLock lock(&mutex_);
  last_start_ = SteadyNow();
}

bool Pager::WaitForQuiet(absl::Duration quiet) {
  while (!stop_) {
    bool starting;
    {
      absl::MutexLock lock(&mutex_);
      starting = !prefetches_.empty() || SteadyNow() - last_start_ < quiet;
    }
    for (const std::shared_ptr<LazyClone>& clone : Clones()) starting |= clone->being_made();
    if (!starting) return true;
    absl::SleepFor(kLookWhetherStarting);
  }
  return false;
}

void Pager::KeepInBackground() {
  GiveWay();
  for (;;) {
    SetToKeep next;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Pager::HasSetsToKeep));
      if (stop_) return;
      next = std::move(to_keep_.front());
      to_keep_.pop_front();
    }
    auto kept =
        next.image->KeepPrefill(*store_, next.set, [this] { return WaitForQuiet(absl::ZeroDuration()); });
    if (kept.ok()) {
      absl::MutexLock lock(&mutex_);
      sets_kept_ += *kept ? 1 : 0;
    } else if (!absl::IsCancelled(kept.status())) {
      Log(LogLevel::kWarning,
          absl::StrCat("after the next start of the pager, the first copy of ",
                       next.image->reader().info().reference, " takes longer: ", kept.status().message()));
    }
  }
}

void Pager::WarmInBackground() {
  GiveWay();
  auto open = [this](const std::string& image) -> absl::StatusOr<std::shared_ptr<const store::ImageReader>> {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LazyImage> opened, OpenImage(image));
    const store::ImageReader* reader = &opened->reader();
    return std::shared_ptr<const store::ImageReader>(std::move(opened), reader);
  };
  warmer_->Warm(open, [this] { return WaitForQuiet(kQuietBeforeWarming); });
}

void Pager::SaveHotList() {
  std::vector<std::string> images;
  {
    absl::MutexLock lock(&mutex_);
    images.assign(image_order_.rbegin(), image_order_.rend());
  }
  warmer_->Save(images);
}

}  // namespace rekindle::restore
