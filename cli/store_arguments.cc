#include "cli/store_arguments.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/durations.h"
#include "cli/number_checks.h"

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
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no label: write ", option, " KEY=VALUE"));
  }
  v1::Label label;
  label.set_key(text.substr(0, equals));
  label.set_value(text.substr(equals + 1));
  return label;
}

void StoreArguments::AddToPrune(CLI::App* prune) {
  prune->add_option("names", prune_names_, "Names of images, without tags")->type_name("NAME");
  prune
      ->add_option_function<uint64_t>(
          "--keep-last", [this](uint64_t n) { prune_.set_keep_last(n); }, "Keep the newest N of each name")
      ->type_name("N")
      ->check(WholeAboveZero());
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

absl::StatusOr<Command> StoreArguments::Finish(absl::string_view command) const {
  if (command == "prune") return FinishPrune();
  if (command == "gc") return gc_;
  if (command == "fsck") return fsck_;
  return FinishQuota();
}

absl::StatusOr<Command> StoreArguments::FinishPrune() const {
  v1::PruneImagesRequest request = prune_;
  for (const std::string& name : prune_names_) request.add_names(name);
  for (const std::string& text : prune_labels_) {
    RK_ASSIGN_OR_RETURN(*request.add_keep_labels(), ParseLabel(text, "--keep-label"));
  }
  if (!prune_within_.empty()) {
    RK_ASSIGN_OR_RETURN(int64_t age, ParseAge(prune_within_));
    request.set_keep_within_ns(age);
  }
  return request;
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
