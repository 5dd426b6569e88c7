#include "daemon/prune_rules.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/image_reference.h"
#include "base/status.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {

absl::StatusOr<RetentionRules> RulesOf(const v1::PruneImagesRequest& request) {
  RetentionRules rules;
  rules.keep_last = request.keep_last();
  rules.keep_within_ns = request.keep_within_ns();
  rules.keep_hourly = request.keep_hourly();
  rules.keep_daily = request.keep_daily();
  rules.keep_weekly = request.keep_weekly();
  rules.keep_monthly = request.keep_monthly();
  rules.keep_yearly = request.keep_yearly();
  for (const v1::Label& label : request.keep_labels()) {
    rules.keep_labels.emplace_back(label.key(), label.value());
  }
  if (rules.keep_within_ns < 0) return absl::InvalidArgumentError("keep_within_ns: a time can't be negative");
  if (rules.empty()) {
    return absl::InvalidArgumentError(
        "nothing says what to keep, and all of it would go: give --keep-last, --keep-within, --keep-daily or "
        "its like, or --keep-label");
  }
  if (request.all() == !request.names().empty()) {
    return absl::InvalidArgumentError("say which images: the names of some, or --all, and not both");
  }
  return rules;
}

absl::Status CheckPrunedName(const std::string& name) {
  RK_ASSIGN_OR_RETURN(const std::string reference, store::NormalizeReference(name));
  if (!absl::StrContains(name, ':')) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' names one image; prune takes names without tags, such as '",
                   NameOfReference(reference), "'. `rekindle rm` removes single images"));
}

}  // namespace rekindle::daemon
