#include "daemon/background_scrub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/status.h"
#include "base/timed_await.h"

namespace rekindle::daemon {
namespace {

// A daemon that starts has other things to read first.
constexpr absl::Duration kAfterStart = absl::Minutes(1);
constexpr absl::Duration kAfterError = absl::Minutes(1);
constexpr absl::Duration kWhileBusy = absl::Seconds(1);
// Of a pack that can't be opened nothing is read, which takes no time by itself.
constexpr absl::Duration kAfterDamage = absl::Seconds(1);
// The clock may be set, and images may come: it is looked again.
constexpr absl::Duration kLongestRest = absl::Hours(1);
constexpr absl::Duration kBetweenRates = absl::Seconds(10);
// To tell whom damage costs all manifests are read.
constexpr absl::Duration kBetweenReports = absl::Minutes(1);
constexpr size_t kImagesShown = 20;

// Damage that waits to be logged: a disk that dies has much of it.
class Reporter {
 public:
  void Take(const store::Scrub& scrub, const store::ScrubStep& step) {
    for (const std::string& problem : step.catalog_problems) {
      Log(LogLevel::kWarning,
          absl::StrCat(problem, step.catalog_mended.ok()
                                    ? "; both copies of the catalog are whole again"
                                    : absl::StrCat("; it can't be mended: ", step.catalog_mended.message())));
    }
    pending_.insert(pending_.end(), step.found.begin(), step.found.end());
    const absl::Time now = SteadyNow();
    if (!pending_.empty() && (step.pass_ended || now - last_ >= kBetweenReports)) {
      Log(LogLevel::kError, DescribeDamage(pending_, scrub.ImagesWith(pending_)));
      pending_.clear();
      last_ = now;
    }
    if (!step.pass_ended) return;
    const store::ScrubState& state = scrub.state();
    Log(LogLevel::kInfo,
        absl::StrCat("the store was read again as a whole, ", FormatBytes(state.last_bytes), ": ",
                     state.damage.empty() ? "no" : absl::StrCat(state.damage.size()), " damaged places"));
  }

 private:
  std::vector<store::ScrubDamage> pending_;
  absl::Time last_ = absl::InfinitePast();
};

absl::string_view NameOf(store::ScrubDamage::Part part) {
  switch (part) {
    case store::ScrubDamage::Part::kChunk:
      return "pages";
    case store::ScrubDamage::Part::kManifest:
      return "the manifest of an image";
    case store::ScrubDamage::Part::kRecord:
      return "the copy of a catalog record, which the catalog has still";
    case store::ScrubDamage::Part::kPack:
      break;
  }
  return "all of the pack";
}

}  // namespace

std::string DescribeDamage(absl::Span<const store::ScrubDamage> damage,
                           const absl::StatusOr<std::vector<std::string>>& images) {
  if (damage.empty()) return "";
  const store::ScrubDamage& first = damage.front();
  std::string text = absl::StrFormat("the store is damaged: pack %016x, offset %d (%s): %s", first.pack,
                                     first.offset, NameOf(first.part), first.why);
  if (damage.size() > 1) absl::StrAppend(&text, ", and ", damage.size() - 1, " more places");
  absl::StrAppend(&text, ". The disk does not give back what was written to it. ");
  if (!images.ok()) {
    absl::StrAppend(&text, "Which images have it is not known: ", images.status().message(), ". ");
  } else if (images->empty()) {
    absl::StrAppend(&text, "No image needs it. ");
  } else {
    const size_t shown = std::min(images->size(), kImagesShown);
    absl::StrAppend(&text, "Images that can't be restored whole any more: ",
                    absl::StrJoin(images->begin(), images->begin() + static_cast<ptrdiff_t>(shown), ", "),
                    images->size() > shown ? absl::StrCat(" and ", images->size() - shown, " more") : "",
                    ". New images are not built upon it: the next one of a supervised job is whole; of other "
                    "jobs that run take one now (`rekindle ckpt`). ");
  }
  absl::StrAppend(&text,
                  "Look at the disk (`dmesg`, `smartctl -a`); `rekindle fsck --read --repair` drops what is "
                  "lost");
  return text;
}

BackgroundScrub::BackgroundScrub(OpenStore open, absl::Duration period)
    : open_(std::move(open)), period_(period) {
  thread_ = std::thread(&BackgroundScrub::Loop, this);
}

BackgroundScrub::~BackgroundScrub() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool BackgroundScrub::Rest(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  return !AwaitUntil(mutex_, absl::Condition(&stopping_), Deadline(duration));
}

void BackgroundScrub::Loop() {
  std::unique_ptr<store::Scrub> scrub;
  Reporter reporter;
  std::string last_error;
  uint64_t rate = 0;
  absl::Time rated = absl::InfinitePast();
  auto next = [&]() -> absl::StatusOr<absl::Duration> {
    if (scrub == nullptr) {
      RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, open_());
      RK_ASSIGN_OR_RETURN(scrub, store::NewScrub(*store));
    }
    const absl::Time now = absl::Now();
    const absl::Duration until = store::UntilScrub(scrub->state(), period_, now);
    if (until > absl::ZeroDuration()) return std::min(until, kLongestRest);
    if (now < rated || now - rated >= kBetweenRates) {
      RK_ASSIGN_OR_RETURN(const uint64_t left, scrub->BytesLeft());
      rate = store::ScrubRate(left, store::ScrubTimeLeft(scrub->state(), period_, now));
      rated = now;
    }
    const Stopwatch took;
    RK_ASSIGN_OR_RETURN(const store::ScrubStep step, scrub->Next());
    reporter.Take(*scrub, step);
    if (step.busy) return kWhileBusy;
    const absl::Duration pause = store::ScrubPause(step.bytes, absl::Seconds(took.seconds()), rate);
    return step.found.empty() ? pause : std::max(pause, kAfterDamage);
  };
  // At once, and not only after the rest: captures then know what was found before.
  if (const auto store = open_(); store.ok()) {
    if (auto opened = store::NewScrub(**store); opened.ok()) scrub = *std::move(opened);
    if (auto known = store::ReadScrubStatus(**store); known.ok() && !known->state.damage.empty())
      Log(LogLevel::kError, DescribeDamage(known->state.damage, known->damaged_images));
  }
  absl::Duration rest = std::min(kAfterStart, period_ / 100);
  while (Rest(rest)) {
    absl::StatusOr<absl::Duration> pause = next();
    rest = pause.value_or(kAfterError);
    if (absl::IsUnavailable(pause.status())) scrub.reset();
    if (pause.ok() || pause.status().message() == last_error) continue;
    last_error = std::string(pause.status().message());
    Log(LogLevel::kWarning,
        absl::StrCat("looking for damage in the store: ", last_error, "; it is tried again every minute"));
  }
}

}  // namespace rekindle::daemon
