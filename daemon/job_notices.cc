#include "daemon/job_notices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMostWarningsOfJob = 20;
// Until an image is taken again.
constexpr size_t kMostReasonsTold = 20;
// Somebody else captures the job, so that no image by interval is taken of it.
constexpr double kBusyIsToldAfterSeconds = 5;

// Names, times and addresses in a message differ each time.
std::string WithoutNumbers(absl::string_view message) {
  std::string words(message);
  std::erase_if(words, [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
  return words;
}

}  // namespace

void JobNotices::Tell(const v1::JobEvent& event, LogLevel level, const std::string& text) {
  const bool told = events_.Send(event);
  if (daemon_ || !told) Log(level, text);
}

void JobNotices::Warn(const std::string& warning) {
  const std::string text = ToUtf8(warning);
  {
    absl::MutexLock lock(&mutex_);
    if (warnings_.size() == kMostWarningsOfJob || std::count(warnings_.begin(), warnings_.end(), text) != 0)
      return;
    warnings_.push_back(text);
  }
  v1::JobEvent event;
  event.mutable_warning()->set_warning(text);
  Tell(event, LogLevel::kWarning, absl::StrCat("job '", job_, "': ", text));
}

void JobNotices::WarnOfKind(const std::string& warning, absl::string_view before) {
  {
    absl::MutexLock lock(&mutex_);
    if (kinds_told_.size() == kMostWarningsOfJob || !kinds_told_.insert(WithoutNumbers(warning)).second)
      return;
  }
  Warn(absl::StrCat(before, warning));
}

std::vector<std::string> JobNotices::warnings() const {
  absl::MutexLock lock(&mutex_);
  return warnings_;
}

void JobNotices::LogIsFull(const std::string& hint) {
  const std::string text = ToUtf8(hint);
  {
    absl::MutexLock lock(&mutex_);
    if (text == full_log_told_) return;
    if (!full_log_told_.empty()) std::erase(warnings_, full_log_told_);
    full_log_told_ = text;
  }
  if (!text.empty()) Warn(text);
}

bool JobNotices::told_of_full_log() const {
  absl::MutexLock lock(&mutex_);
  return !full_log_told_.empty();
}

void JobNotices::TellOfCopies(const std::string& place, const std::string& trouble) {
  v1::JobEvent event;
  event.mutable_copies()->set_place(ToUtf8(place));
  event.mutable_copies()->set_trouble(ToUtf8(trouble));
  {
    absl::MutexLock lock(&mutex_);
    copies_trouble_ = event.copies();
  }
  events_.Send(event);
}

std::optional<v1::JobEvent> JobNotices::TroubleOfCopies() const {
  absl::MutexLock lock(&mutex_);
  if (copies_trouble_.trouble().empty()) return std::nullopt;
  v1::JobEvent event;
  *event.mutable_copies() = copies_trouble_;
  return event;
}

void JobNotices::ImageTaken() {
  {
    absl::MutexLock lock(&mutex_);
    busy_since_ = 0;
    if (std::exchange(reasons_told_, {}).empty()) return;
  }
  v1::JobEvent event;
  event.mutable_images_missing();
  events_.Send(event);
}

double JobNotices::BusySeconds(const absl::Status& why, double now) {
  if (!absl::IsAborted(why)) {
    busy_since_ = 0;
  } else if (busy_since_ == 0) {
    busy_since_ = now;
  }
  return now - busy_since_;
}

void JobNotices::NoImageWanted(const absl::Status& why, double now) {
  absl::MutexLock lock(&mutex_);
  BusySeconds(why, now);
}

void JobNotices::NoImage(const absl::Status& why, double now, double period_seconds) {
  {
    absl::MutexLock lock(&mutex_);
    const double busy = BusySeconds(why, now);
    // A group may wait for long before it has an image.
    if (absl::IsAborted(why) && busy < std::max(period_seconds, kBusyIsToldAfterSeconds)) return;
    if (reasons_told_.size() >= kMostReasonsTold ||
        !reasons_told_.insert(WithoutNumbers(why.message())).second)
      return;
  }
  v1::JobEvent event;
  event.mutable_images_missing()->set_why(ToUtf8(why.message()));
  Tell(event, LogLevel::kWarning, absl::StrCat("no image was taken of job '", job_, "': ", why.message()));
}

}  // namespace rekindle::daemon
