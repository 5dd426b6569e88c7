#include "ckpt/parent_image.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/image_reference.h"
#include "base/log.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

// Each that is passed over is a warning.
constexpr size_t kMostParentsTried = 8;

// The best first.
absl::StatusOr<std::vector<store::ImageInfo>> PossibleParents(const store::Store& store,
                                                              const store::NewImageOptions& of) {
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(of.reference));
  const absl::string_view name = NameOfReference(reference);
  const auto is_of_job = [job_id = of.labels.at(v1::kJobIdLabel)](const store::ImageInfo& image) {
    auto label = image.labels.find(v1::kJobIdLabel);
    return label != image.labels.end() && label->second == job_id;
  };
  const auto is_of_name = [name](const store::ImageInfo& image) {
    return NameOfReference(image.reference) == name;
  };
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> images, store.List([&](const store::ImageInfo& image) {
    return image.owner == of.owner && (is_of_job(image) || is_of_name(image));
  }));
  std::vector<store::ImageInfo> of_job, of_name;
  for (store::ImageInfo& image : images) {  // newest first
    (is_of_job(image) ? of_job : of_name).push_back(std::move(image));
  }
  std::move(of_name.begin(), of_name.end(), std::back_inserter(of_job));
  if (of_job.size() > kMostParentsTried) of_job.resize(kMostParentsTried);
  return of_job;
}

}  // namespace

absl::StatusOr<std::unique_ptr<store::ImageWriter>> BeginWithBestParent(store::Store& store,
                                                                        store::NewImageOptions image,
                                                                        std::vector<std::string>* warnings) {
  RK_ASSIGN_OR_RETURN(const std::vector<store::ImageInfo> parents, PossibleParents(store, image));
  for (const store::ImageInfo& parent : parents) {
    image.parent = parent.digest;
    absl::StatusOr<std::unique_ptr<store::ImageWriter>> writer = store.NewImage(image);
    if (writer.ok()) return writer;
    const absl::Status readable = store.OpenImage(parent.digest).status();
    if (readable.ok()) return writer.status();
    if (absl::IsNotFound(readable)) continue;  // removed meanwhile
    warnings->push_back(absl::StrCat(
        "image ", parent.reference,
        " was passed over as the parent of the new one, because it is damaged: ", readable.message()));
    Log(LogLevel::kWarning, warnings->back());
  }
  image.parent.clear();
  return store.NewImage(image);
}

}  // namespace rekindle::ckpt
