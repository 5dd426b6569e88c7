#include "cli/store_arguments.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/durations.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"
#include "cli/place_check.h"
#include "cli/place_pruning.h"
#include "cli/transfer_arguments.h"

namespace rekindle::cli {
namespace {

// A limit; "none" is 0.
absl::StatusOr<uint64_t> ParseLimit(const std::string& text) {
  if (text == "none") return 0;
  absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (bytes.ok() && *bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' would be no limit: write a size, or 'none' to take the limit away"));
  }
  return bytes;
}

absl::StatusOr<uint32_t> ParsePercent(absl::string_view text) {
  if (text == "none") return 0;
  uint32_t percent = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(text, "%"), &percent) || percent < 1 || percent > 100) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no share of a file system: write 1% to 100%, or 'none'"));
  }
  return percent;
}

}  // namespace

absl::StatusOr<v1::Label> ParseLabel(const std::string& text, absl::string_view option) {
  RK_ASSIGN_OR_RETURN(auto named, ParseAssignment(option, text, "KEY=VALUE"));
  v1::Label label;
  label.set_key(std::move(named.first));
  label.set_value(std::move(named.second));
  return label;
}

void StoreArguments::AddToPrune(CLI::App* prune) {
  prune->add_option("names", prune_names_, "Names of images, without tags")->type_name("NAME");
  struct Counted {
    const char* option;
    void (v1::PruneImagesRequest::*set)(uint64_t);
    const char* help;
  };
  for (const Counted& rule :
       {Counted{"--keep-last", &v1::PruneImagesRequest::set_keep_last, "Keep the newest N of each name"},
        Counted{"--keep-hourly", &v1::PruneImagesRequest::set_keep_hourly, "The newest of each of N hours"},
        Counted{"--keep-daily", &v1::PruneImagesRequest::set_keep_daily, "The newest of each of N days"},
        Counted{"--keep-weekly", &v1::PruneImagesRequest::set_keep_weekly, "The newest of each of N weeks"},
        Counted{"--keep-monthly", &v1::PruneImagesRequest::set_keep_monthly,
                "The newest of each of N months"},
        Counted{"--keep-yearly", &v1::PruneImagesRequest::set_keep_yearly,
                "The newest of each of N years"}}) {
    prune
        ->add_option_function<uint64_t>(
            rule.option, [this, set = rule.set](uint64_t n) { (prune_.*set)(n); }, rule.help)
        ->type_name("N")
        ->check(WholeAboveZero());
  }
  prune
      ->add_option("--keep-within", prune_within_,
                   "Keep what has not been in this store for longer: 90s, 30m, 36h, 7d, 2w")
      ->type_name("AGE");
  prune->add_option("--keep-label", prune_labels_, "Keep what has this label; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  prune->add_flag_callback(
      "--all", [this] { prune_.set_all(true); }, "Of every name");
  prune->add_flag_callback(
      "--groups", [this] { prune_.set_groups(true); },
      "Also images of group checkpoints, which can't be restored then");
  prune->add_flag_callback(
      "--dry-run", [this] { prune_.set_dry_run(true); }, "Only say what would be removed");
  prune->add_flag_callback(
      "--gc", [this] { prune_.set_collect_garbage(true); }, "Free their space afterwards");
  prune
      ->add_option("--from", prune_from_,
                   "Copies elsewhere: at another daemon, in the folder of a store, or in an object store")
      ->type_name(kPlaces);
}

void StoreArguments::AddToGc(CLI::App* gc) {
  gc->add_flag_callback(
      "--dry-run", [this] { gc_.set_dry_run(true); }, "Only say what would be freed");
}

void StoreArguments::AddToFsck(CLI::App* fsck) {
  fsck->add_flag_callback(
      "--read,--read-data", [this] { fsck_.set_read_data(true); }, "Read and verify every stored byte");
  fsck->add_flag_callback(
      "--repair", [this] { fsck_.set_repair(true); }, "Mend what can be mended");
  fsck->add_option("--from", fsck_from_,
                   "Copies elsewhere: at another daemon, in the folder of a store, or in an object store")
      ->type_name(kPlaces);
  fsck->add_option("names", fsck_names_, "In an object store: only images of these names")->type_name("NAME");
}

void StoreArguments::AddToQuota(CLI::App* quota) {
  quota->add_option("--owner", quota_owner_, "The user whose images are limited by --max")
      ->type_name("USER|UID");
  quota->add_option("--max", quota_max_, "What the owner's images may take, or 'none'")->type_name("SIZE");
  quota->add_option("--store-max", quota_store_max_, "What the store may take on disk, or 'none'")
      ->type_name("SIZE");
  quota
      ->add_option("--high-water", quota_high_water_,
                   "Refuse new images once this much of the file system is taken, or 'none' [95%]")
      ->type_name("PERCENT");
}

absl::StatusOr<Command> StoreArguments::Finish(absl::string_view command, bool tls,
                                               const std::string& working_directory) const {
  if (command == "prune") return FinishPrune(tls, working_directory);
  if (command == "gc") return gc_;
  if (command == "fsck") return FinishFsck(tls, working_directory);
  return FinishQuota();
}

absl::StatusOr<Command> StoreArguments::FinishPrune(bool tls, const std::string& working_directory) const {
  v1::PruneImagesRequest request = prune_;
  for (const std::string& name : prune_names_) request.add_names(name);
  for (const std::string& text : prune_labels_) {
    RK_ASSIGN_OR_RETURN(*request.add_keep_labels(), ParseLabel(text, "--keep-label"));
  }
  if (!prune_within_.empty()) {
    RK_ASSIGN_OR_RETURN(int64_t age, ParseAge(prune_within_));
    request.set_keep_within_ns(age);
  }
  if (prune_from_.empty()) return request;
  RK_ASSIGN_OR_RETURN(ImagePlace place, ParsePlace("--from", prune_from_, tls, working_directory));
  if (!place.bucket.empty() && request.collect_garbage()) {
    return absl::InvalidArgumentError(
        "--gc: what is removed from an object store takes no room there any more: leave it out");
  }
  if (!place.bucket.empty() && request.groups()) {
    return absl::InvalidArgumentError("--groups: copies in an object store are of no group: leave it out");
  }
  return PruneElsewhere{std::move(request), std::move(place.where), std::move(place.bucket)};
}

absl::StatusOr<Command> StoreArguments::FinishFsck(bool tls, const std::string& working_directory) const {
  ImagePlace place;
  if (!fsck_from_.empty()) {
    RK_ASSIGN_OR_RETURN(place, ParsePlace("--from", fsck_from_, tls, working_directory));
  }
  if (place.bucket.empty() && !fsck_names_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", fsck_names_.front(),
                     "': all of a store is checked; names are for an object store (--from rclone:…)"));
  }
  if (!place.bucket.empty() && fsck_.repair() && !fsck_.read_data()) {
    return absl::InvalidArgumentError(
        "--repair: what is damaged in an object store shows when it is read: give --read, too");
  }
  if (fsck_from_.empty()) return fsck_;
  return FsckElsewhere{fsck_, fsck_names_, std::move(place.where), std::move(place.bucket)};
}

absl::StatusOr<Command> StoreArguments::FinishQuota() const {
  if (quota_owner_.empty() != quota_max_.empty()) {
    return absl::InvalidArgumentError("--owner and --max go together");
  }
  if (quota_owner_.empty() && quota_store_max_.empty() && quota_high_water_.empty()) {
    return v1::GetQuotaRequest();
  }
  v1::SetQuotaRequest request;
  if (!quota_owner_.empty()) {
    RK_ASSIGN_OR_RETURN(uint64_t bytes, ParseLimit(quota_max_));
    request.set_owner(quota_owner_);
    request.set_owner_max_bytes(bytes);
  }
  if (!quota_store_max_.empty()) {
    RK_ASSIGN_OR_RETURN(uint64_t bytes, ParseLimit(quota_store_max_));
    request.set_store_max_bytes(bytes);
  }
  if (!quota_high_water_.empty()) {
    RK_ASSIGN_OR_RETURN(uint32_t percent, ParsePercent(quota_high_water_));
    request.set_high_water_percent(percent);
  }
  return request;
}

}  // namespace rekindle::cli
