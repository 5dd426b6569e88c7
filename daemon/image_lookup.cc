#include "daemon/image_lookup.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rekindle/v1/copy_link.h"

namespace rekindle::daemon {
namespace {

// The store's own words name images that come near, whose names and digests are not for everybody to know.
absl::Status WithoutOthers(const absl::Status& status, absl::string_view image) {
  if (absl::IsNotFound(status)) {
    return absl::NotFoundError(
        absl::StrCat("there is no image ", image, ": 'rekindle ls' lists those that you may use"));
  }
  if (absl::IsInvalidArgument(status) && absl::StrContains(image, "sha256:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", image, "' fits several images, or is no digest: sha256: and 12 to 64 hexadecimal digits"));
  }
  return status;
}

bool HasNoTag(absl::string_view image) { return image.find_first_of(":@") == absl::string_view::npos; }

// Of those that the caller may use, newest first.
absl::StatusOr<std::vector<store::ImageInfo>> ImagesOfName(const Node& node, const store::Store& store,
                                                           const Caller& caller, absl::string_view name) {
  const std::string beginning = absl::StrCat(name, ":");
  return store.List([&](const store::ImageInfo& info) {
    return absl::StartsWith(info.reference, beginning) && node.policy().MayUse(caller, info.owner) &&
           !v1::IsCopyLink(info.reference, info.labels);
  });
}

}  // namespace

absl::StatusOr<store::ImageInfo> FindImageFor(const Node& node, const store::Store& store,
                                              const Caller& caller, absl::string_view image,
                                              absl::string_view verb, BareName bare) {
  const absl::StatusOr<std::string> latest = store::NormalizeReference(image);
  if (bare == BareName::kNewest && HasNoTag(image) && latest.ok()) {
    // The catalog knows it by its name; only the others are looked for among all images.
    RK_ASSIGN_OR_RETURN(const std::optional<store::ImageInfo> there, store.FindByName(*latest));
    if (!there) {
      RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> of_name, ImagesOfName(node, store, caller, image));
      if (!of_name.empty()) return std::move(of_name.front());
      // Who may know no more than that is not worth another look.
      if (!node.policy().IsAdmin(caller)) return WithoutOthers(absl::NotFoundError(""), image);
    }
  }
  const auto may_see = [&](const store::ImageInfo& info) { return node.policy().MayUse(caller, info.owner); };
  absl::StatusOr<store::ImageInfo> found = store.Find(image, may_see);
  if (!found.ok() && !node.policy().IsAdmin(caller)) return WithoutOthers(found.status(), image);
  RK_ASSIGN_OR_RETURN(store::ImageInfo info, std::move(found));
  RK_RETURN_IF_ERROR(node.policy().MayUseImage(caller, info.owner, verb, info.reference));
  return info;
}

std::string WarningOfNewer(const Node& node, const store::Store& store, const Caller& caller,
                           absl::string_view image, const store::ImageInfo& found) {
  if (!HasNoTag(image) || found.reference != absl::StrCat(image, ":latest")) return "";
  const auto of_name = ImagesOfName(node, store, caller, image);
  if (!of_name.ok() || of_name->empty() || of_name->front().reference == found.reference) return "";
  return absl::StrCat(found.reference, " is not the newest image of '", image,
                      "': ", of_name->front().reference, " is. Name that one if you mean it");
}

}  // namespace rekindle::daemon
