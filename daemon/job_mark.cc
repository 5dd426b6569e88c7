#include "daemon/job_mark.h"

#include <algorithm>
#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

// No job's name has it.
constexpr char kBetween = '+';
// A name of a file, with what it is called while it is made.
constexpr size_t kLongestMark = 200;

}  // namespace

std::string NewJobMark(absl::string_view job_name) {
  std::array<char, 8> random;
  FillWithRandomBytes(random.data(), random.size());
  return absl::StrCat(job_name, std::string(1, kBetween),
                      absl::BytesToHexString(absl::string_view(random.data(), random.size())));
}

bool IsJobMark(absl::string_view text) {
  return absl::StrContains(text, kBetween) && text.size() <= kLongestMark && text[0] != '.' &&
         !absl::StrContains(text, '/') && !absl::StrContains(text, '\0');
}

std::string MarkOfImage(const std::map<std::string, std::string>& labels) {
  auto it = labels.find(v1::kJobMarkLabel);
  return it != labels.end() && IsJobMark(it->second) ? it->second : std::string();
}

MarkUses::Use& MarkUses::Use::operator=(Use&& other) noexcept {
  std::swap(uses_, other.uses_);
  std::swap(mark_, other.mark_);
  std::swap(job_, other.job_);
  std::swap(ends_, other.ends_);
  return *this;
}

MarkUses::Use::~Use() {
  if (uses_ != nullptr) uses_->GiveBack(mark_, job_, ends_);
}

MarkUses::Use MarkUses::Restore(const std::string& mark, const std::string& job) {
  if (mark.empty()) return Use();
  absl::MutexLock lock(&mutex_);
  auto nobody_ends = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ending_.count(mark) == 0; };
  mutex_.Await(absl::Condition(&nobody_ends));
  restoring_[mark].insert(job);
  return Use(*this, mark, job, /*ends=*/false);
}

MarkUses::Use MarkUses::End(const std::string& mark, const std::string& job) {
  absl::MutexLock lock(&mutex_);
  if (auto it = restoring_.find(mark); it != restoring_.end()) {
    const bool by_others =
        std::any_of(it->second.begin(), it->second.end(), [&](const std::string& by) { return by != job; });
    if (by_others) return Use();
  }
  ending_.insert(mark);
  return Use(*this, mark, job, /*ends=*/true);
}

void MarkUses::GiveBack(const std::string& mark, const std::string& job, bool ends) {
  absl::MutexLock lock(&mutex_);
  if (ends) {
    ending_.erase(ending_.find(mark));
    return;
  }
  auto it = restoring_.find(mark);
  it->second.erase(it->second.find(job));
  if (it->second.empty()) restoring_.erase(it);
}

}  // namespace rekindle::daemon
