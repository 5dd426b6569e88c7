#include "cli/place_pruning.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/retention.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"
#include "cli/bucket_retention.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/copy_source.h"
#include "cli/endpoint.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "daemon/prune_rules.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

constexpr size_t kLongestWarned = 200;

v1::PrunedImage ToProto(const std::string& name, const BucketImages& images, const BucketVerdict& verdict) {
  v1::PrunedImage pruned;
  v1::Image& image = *pruned.mutable_image();
  image.set_reference(absl::StrCat(name, ":", verdict.image.tag));
  image.set_created_unix_ns(verdict.image.created_unix_ns);
  image.set_stored_bytes(images.BytesOf(verdict.image));
  image.set_damaged(!verdict.usable);
  (*image.mutable_labels())[v1::kOriginLabel] = absl::StrCat("sha256:", verdict.image.origin);
  pruned.set_keep(verdict.keep);
  for (const std::string& reason : verdict.reasons) pruned.add_reasons(reason);
  return pruned;
}

// The images of an object store.
class BucketPruning {
 public:
  BucketPruning(Bucket& bucket, const Output& output, const PruneElsewhere& what, RetentionRules rules)
      : bucket_(bucket), output_(output), what_(what), rules_(std::move(rules)) {}

  absl::StatusOr<v1::PruneImagesResponse> Run() {
    std::set<std::string> names(what_.request.names().begin(), what_.request.names().end());
    if (what_.request.all()) {
      RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, bucket_.ListImageObjects());
      for (const BucketObject& object : objects) {
        const size_t slash = object.name.rfind('/');
        if (slash != std::string::npos && slash > 0) names.insert(object.name.substr(0, slash));
      }
    }
    for (const std::string& name : names) {
      const absl::Status pruned = Prune(name);
      if (pruned.ok()) continue;
      if (response_.removed() == 0) return pruned;
      return Annotate(pruned, absl::StrCat("removed ", response_.removed(), " images, then"));
    }
    return std::move(response_);
  }

 private:
  absl::Status NoneOf(const std::string& name) const {
    return absl::NotFoundError(absl::StrCat("there is no image of the name ", name, " in ", what_.from));
  }

  absl::Status Prune(const std::string& name) {
    const absl::StatusOr<std::vector<BucketObject>> objects = bucket_.List(name, Bucket::Times::kAsked);
    if (absl::IsNotFound(objects.status())) return NoneOf(name);
    RK_RETURN_IF_ERROR(objects.status());
    const BucketImages images(*objects);
    // A folder of somebody else's has none, or another job has removed the last one.
    const bool is_empty = images.complete().empty() && images.incomplete().empty();
    if (is_empty) return what_.request.all() ? absl::OkStatus() : NoneOf(name);
    const absl::Time unfinished_before = UnfinishedBefore(*objects);
    RK_ASSIGN_OR_RETURN(const std::vector<BucketVerdict> verdicts, Decide(name, images, unfinished_before));
    std::vector<std::string> markers, contents;
    uint64_t bytes = 0, leftovers = 0, gone = 0;
    const auto remove = [&](const BucketImage& image) {
      markers.push_back(image.JsonObject());
      contents.push_back(image.ImageObject());
      bytes += image.bytes;
    };
    for (const BucketVerdict& verdict : verdicts) {
      const bool is_part = IsStrayLink(verdict.image);
      if (!is_part) *response_.add_images() = ToProto(name, images, verdict);
      if (verdict.keep) continue;
      remove(verdict.image);
      ++(is_part ? leftovers : gone);
    }
    response_.set_removed_stored_bytes(response_.removed_stored_bytes() + bytes);
    for (const BucketImage& image : images.incomplete()) {
      if (image.written >= unfinished_before) continue;
      remove(image);
      ++leftovers;
    }
    if (what_.request.dry_run() || contents.empty()) return absl::OkStatus();
    // An image whose removal is interrupted is no longer complete.
    RK_RETURN_IF_ERROR(bucket_.Remove(name, markers));
    RK_RETURN_IF_ERROR(bucket_.Remove(name, contents));
    response_.set_removed(response_.removed() + static_cast<uint32_t>(gone));
    v1::CollectGarbageResponse& garbage = *response_.mutable_garbage();
    garbage.set_bytes_freed(garbage.bytes_freed() + bytes);
    garbage.set_leftovers_removed(garbage.leftovers_removed() + leftovers);
    return WarnOfLost(bucket_, output_, name, images, what_.from);
  }

  absl::StatusOr<std::vector<BucketVerdict>> Decide(const std::string& name, const BucketImages& images,
                                                    absl::Time unfinished_before) {
    const auto decide = [&](const BucketLabels* labels) {
      return DecideBucketRetention(images, rules_, labels, UnixNanos(), unfinished_before,
                                   absl::LocalTimeZone());
    };
    std::vector<BucketVerdict> verdicts = decide(nullptr);
    if (rules_.keep_labels.empty()) return verdicts;
    if (std::none_of(verdicts.begin(), verdicts.end(),
                     [](const BucketVerdict& verdict) { return verdict.usable && !verdict.keep; }))
      return verdicts;
    // Of all, for one that stays by another rule has labels, too.
    std::vector<BucketImage> asked;
    for (const BucketVerdict& verdict : verdicts) {
      if (verdict.usable) asked.push_back(verdict.image);
    }
    BucketMarkers markers;
    RK_RETURN_IF_ERROR(markers.Read(bucket_, name, asked));
    BucketLabels labels;
    for (const BucketImage& image : asked) {
      const v1::Image* const said = markers.Find(KeyOf(image));
      if (said != nullptr) labels[KeyOf(image)] = {said->labels().begin(), said->labels().end()};
    }
    return decide(&labels);
  }

  Bucket& bucket_;
  const Output& output_;
  const PruneElsewhere& what_;
  const RetentionRules rules_;
  v1::PruneImagesResponse response_;
};

}  // namespace

absl::Status WarnOfLost(Bucket& bucket, const Output& output, const std::string& name,
                        const BucketImages& before, const std::string& from) {
  absl::StatusOr<std::vector<BucketObject>> objects = bucket.List(name);
  if (absl::IsNotFound(objects.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(objects.status());
  std::set<std::string> known;
  for (const BucketImage& image : before.complete()) known.insert(image.ImageObject());
  const BucketImages now(*objects);
  for (const BucketImage& image : now.complete()) {
    if (now.HasChain(image.origin) || known.contains(image.ImageObject())) continue;
    output.Warning(absl::StrCat(Shown(absl::StrCat(name, ":", image.tag), kLongestWarned), " came to ", from,
                                " meanwhile and builds upon what was removed: copy it there again"));
  }
  return absl::OkStatus();
}

int PruneImagesElsewhere(const GlobalOptions& globals, const Output& output, const PruneElsewhere& what) {
  if (!what.bucket.empty()) {
    absl::StatusOr<RetentionRules> rules = daemon::RulesOf(what.request);
    if (!rules.ok()) return output.Fail(rules.status());
    for (const std::string& name : what.request.names()) {
      if (const absl::Status checked = daemon::CheckPrunedName(name); !checked.ok())
        return output.Fail(checked);
    }
    Bucket bucket(what.bucket);
    return ShowPruned(output, BucketPruning(bucket, output, what, *std::move(rules)).Run(),
                      what.request.dry_run());
  }
  absl::StatusOr<std::unique_ptr<Client>> opened = OpenElsewhere(globals, what.from);
  if (!opened.ok()) return output.Fail(opened.status());
  return PruneImages(**opened, output, what.request);
}

}  // namespace rekindle::cli
