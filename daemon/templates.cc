#include "daemon/templates.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::daemon {

absl::Status Templates::CheckIsFree(const std::string& name) const {
  auto found = templates_.find(name);
  if (found == templates_.end() || !JobRegistry::Lives(found->second.job)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("a template '", name, "' is up: take it down, or give another name with --name"));
}

absl::Status Templates::CheckNameIsFree(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return CheckIsFree(name);
}

absl::Status Templates::Add(TemplateRecord record, const std::function<bool()>& cancelled) {
  if (cancelled && cancelled())
    return absl::CancelledError("cancelled; the template that was just put up was taken down again");
  TemplateRecord old;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(CheckIsFree(record.name));
  old = std::exchange(templates_[record.name], std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<TemplateRecord> Templates::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  auto found = templates_.find(name);
  if (found != templates_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("there is no template '", name,
                   "': see 'rekindle template ls'; 'rekindle template up IMAGE' makes one"));
}

void Templates::CountCopy(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  auto found = templates_.find(name);
  if (found != templates_.end()) ++found->second.copies;
}

std::vector<TemplateRecord> Templates::List() {
  std::vector<TemplateRecord> records, dead;
  absl::MutexLock lock(&mutex_);
  for (auto it = templates_.begin(); it != templates_.end();) {
    const bool lives = JobRegistry::Lives(it->second.job);
    (lives ? records : dead).push_back(it->second);
    it = lives ? std::next(it) : templates_.erase(it);
  }
  return records;
}

absl::Status Templates::Remove(const std::string& name) {
  std::shared_ptr<restore::Template> last;
  absl::MutexLock lock(&mutex_);
  auto found = templates_.find(name);
  if (found == templates_.end())
    return absl::NotFoundError(absl::StrCat("there is no template '", name, "'"));
  last = std::move(found->second.instance);
  templates_.erase(found);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
