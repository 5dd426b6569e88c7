#include "cli/copy_source.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/image_reference.h"
#include "base/status.h"
#include "cli/image_descent.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

// Taken here, or taken in of the job that this image is of.
bool IsOwn(const v1::Image& one, const v1::Image& image) {
  return !one.labels().contains(v1::kOriginLabel) || JobOf(one) == JobOf(image);
}

}  // namespace

const std::string& OriginOf(const v1::Image& image) {
  auto label = image.labels().find(v1::kOriginLabel);
  return label == image.labels().end() ? image.digest() : label->second;
}

std::string JobOf(const v1::Image& image) {
  for (const char* key : {v1::kJobMarkLabel, v1::kJobIdLabel}) {
    auto label = image.labels().find(key);
    if (label != image.labels().end() && !label->second.empty()) return label->second;
  }
  return "";
}

std::string RequestFor(const v1::Image& image) {
  return absl::StrCat(image.reference(), "@", image.digest());
}

std::string NameOf(const std::string& reference) { return std::string(NameOfReference(reference)); }

std::string TagOf(const std::string& reference) {
  const size_t colon = reference.rfind(':');
  return colon == std::string::npos ? "" : reference.substr(colon + 1);
}

bool IsWorthAnAttempt(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

uint64_t CopyPartBytes() {
  const char* text = std::getenv("REKINDLE_COPY_PART");
  uint32_t mib = 0;
  return text != nullptr && absl::SimpleAtoi(text, &mib) ? uint64_t{mib} << 20 : 0;
}

absl::Status SendWithParts(Client& from, v1::SendImageRequest request,
                           const std::function<bool(const v1::SendImageEvent&)>& on_event) {
  bool begun = false;
  const auto note = [&](const v1::SendImageEvent& event) {
    begun = true;
    return on_event(event);
  };
  const absl::Status sent = from.SendImage(request, note);
  // As an older daemon refuses what it does not know.
  if (!absl::IsInvalidArgument(sent) || begun) return sent;
  request.clear_parts();
  return from.SendImage(request, on_event);
}

absl::StatusOr<v1::ListImagesResponse> ImagesIn(Client& client, const std::string& name_contains) {
  v1::ListImagesRequest request;
  request.set_name_contains(name_contains);
  absl::StatusOr<v1::ListImagesResponse> images = client.ListImages(request);
  if (absl::IsNotFound(images.status())) return v1::ListImagesResponse();
  return images;
}

absl::StatusOr<v1::Image> CopySource::Find(const std::string& image) const {
  v1::InspectImageRequest request;
  request.set_image(image);
  request.set_image_alone(true);
  RK_ASSIGN_OR_RETURN(v1::InspectImageResponse found, client_.InspectImage(request));
  return std::move(*found.mutable_image());
}

absl::StatusOr<v1::Image> CopySource::Newest(const std::string& name) const {
  RK_ASSIGN_OR_RETURN(std::vector<v1::Image> images, ImagesOf(name, /*newest=*/1));
  if (images.empty()) return absl::NotFoundError(absl::StrCat("there is no image of ", name, " yet"));
  return std::move(images.front());
}

absl::StatusOr<std::optional<v1::Image>> CopySource::NewestAfter(const v1::Image& image) const {
  return NewestOf(NameOf(image.reference()), [&](const v1::Image& one) { return IsOlderOfJob(image, one); });
}

absl::StatusOr<std::optional<v1::Image>> CopySource::BaseOf(
    const v1::Image& image, absl::FunctionRef<bool(const std::string& origin)> has) const {
  return NewestOf(NameOf(image.reference()), [&](const v1::Image& one) {
    return one.owner_uid() == image.owner_uid() && one.digest() != image.digest() &&
           OriginOf(one) != OriginOf(image) && has(OriginOf(one));
  });
}

absl::StatusOr<std::set<std::string>> CopySource::Ours(const v1::Image& image) {
  RK_ASSIGN_OR_RETURN(const std::vector<v1::Image> images, ImagesOf(NameOf(image.reference())));
  NoteOurs(images, image);
  return ours_;
}

void CopySource::NoteOurs(const std::vector<v1::Image>& images, const v1::Image& image) {
  for (const v1::Image& one : images) {
    if (!IsOwn(one, image)) continue;
    const std::string& origin = OriginOf(one);
    ours_.insert(origin);
    tags_[origin].insert(TagOf(one.reference()));
    if (one.labels().contains(v1::kOriginLabel)) came_here_.insert(origin);
  }
}

bool CopySource::IsOurName(const std::string& origin, const std::string& tag) const {
  const auto known = tags_.find(origin);
  return known == tags_.end() || known->second.contains(tag);
}

absl::StatusOr<CopySource::Order> CopySource::OrderAround(const v1::Image& image) {
  Order order;
  if (image.labels().contains(v1::kOriginLabel)) return order;
  RK_ASSIGN_OR_RETURN(const std::vector<v1::Image> images, ImagesOf(NameOf(image.reference())));
  NoteOurs(images, image);
  order.earlier = ours_;
  for (const v1::Image& one : images) {
    if (one.digest() == image.digest()) break;
    order.earlier.erase(OriginOf(one));
    // What was taken in may be of any age.
    if (!one.labels().contains(v1::kOriginLabel)) order.later.insert(OriginOf(one));
  }
  order.earlier.erase(OriginOf(image));
  return order;
}

absl::StatusOr<std::optional<v1::Image>> CopySource::NewestOf(
    const std::string& name, absl::FunctionRef<bool(const v1::Image&)> eligible) const {
  RK_ASSIGN_OR_RETURN(std::vector<v1::Image> images, ImagesOf(name));
  for (v1::Image& image : images) {
    if (eligible(image)) return std::move(image);
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<v1::Image>> CopySource::ImagesOf(const std::string& name, uint32_t newest) const {
  v1::ListImagesRequest request;
  // With the colon: images of "train-1" are not those of "train-10", of which there may be thousands.
  request.set_name_contains(absl::StrCat(name, ":"));
  absl::StatusOr<v1::ListImagesResponse> listed = absl::InvalidArgumentError("");
  if (knows_names_) {
    v1::ListImagesRequest exact = request;
    exact.set_name(name);
    exact.set_newest(newest);
    listed = client_.ListImages(exact);
    // An older daemon refuses what it does not know.
    knows_names_ = !absl::IsInvalidArgument(listed.status());
  }
  if (!knows_names_) listed = client_.ListImages(request);
  RK_RETURN_IF_ERROR(listed.status());
  std::vector<v1::Image> images;
  for (v1::Image& image : *listed->mutable_images()) {
    if (NameOf(image.reference()) == name && !v1::IsCopyLink(image.reference(), image.labels()))
      images.push_back(std::move(image));
  }
  return images;
}

}  // namespace rekindle::cli
