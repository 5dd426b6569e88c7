#include "cli/bucket_upload.h"

#include <algorithm>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/json.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

// Of an object store that may be what has failed, or with the user waiting for the end.
constexpr absl::Duration kCleaningPatience = absl::Seconds(10);

// Of a copy that has failed. Whoever puts the same one may have completed it.
void RemoveUnfinished(const std::string& location, const std::string& name, const BucketImage& copy) {
  Bucket bucket(location, kCleaningPatience);  // the other one may be cancelled
  const absl::StatusOr<std::vector<BucketObject>> objects = bucket.List(name);
  if (!objects.ok()) return;
  const auto has = [&](const std::string& object) {
    return std::any_of(objects->begin(), objects->end(),
                       [&](const BucketObject& one) { return one.name == object; });
  };
  if (has(copy.ImageObject()) && !has(copy.JsonObject()))
    bucket.Remove(name, {copy.ImageObject()}).IgnoreError();
}

}  // namespace

BucketUpload::~BucketUpload() {
  transfer_.reset();
  // What has the name without our doing is another one's, who may be about to complete it.
  if (unfinished_ && (is_named_ || !bucket_.is_folder_here()))
    RemoveUnfinished(bucket_.location(), name_, coming_);
}

absl::Status BucketUpload::Begin(const v1::SendImagePart& part) {
  if (opened_) {
    v1::TransferResult result;
    result.mutable_image()->set_reference(absl::StrCat(name_, ":", coming_.tag));
    (*result.mutable_image()->mutable_labels())[v1::kOriginLabel] = absl::StrCat("sha256:", coming_.origin);
    result.set_bytes(written_);
    RK_RETURN_IF_ERROR(Close(result));
    put_part_ = true;
  }
  image_.base = IdOf(part.base());
  BucketImage coming = image_;
  if (!part.last()) {
    coming.origin = IdOf(part.origin());
    coming.tag = absl::StrCat(v1::kStrayCopyLinkTag, coming.origin);
  }
  return Open(std::move(coming));
}

absl::Status BucketUpload::Open(BucketImage coming) {
  coming_ = std::move(coming);
  written_ = 0;
  opened_ = unfinished_ = true;
  is_named_ = false;
  taken_ = true;
  RK_ASSIGN_OR_RETURN(transfer_, bucket_.Put(absl::StrCat(name_, "/", coming_.ImageObject()), most_bytes_));
  return absl::OkStatus();
}

bool BucketUpload::Write(absl::string_view data) {
  // An older daemon knows of no parts.
  if (!opened_) open_status_ = Open(image_);
  taken_ = open_status_.ok() && transfer_->Write(data);
  written_ += data.size();
  return taken_;
}

absl::Status BucketUpload::Close(const v1::TransferResult& result) {
  RK_RETURN_IF_ERROR(open_status_);
  if (transfer_ == nullptr) return absl::InternalError("nothing of the image came");
  RK_RETURN_IF_ERROR(transfer_->Finish());
  is_named_ = true;
  transfer_.reset();
  if (!taken_) {
    return absl::UnavailableError(
        absl::StrCat("rclone ended before all of ", name_, "/", coming_.ImageObject(), " was written"));
  }
  const std::string json = ToJson(result);
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<BucketTransfer> marker,
                      bucket_.Put(absl::StrCat(name_, "/", coming_.JsonObject()), json.size()));
  marker->Write(json);
  RK_RETURN_IF_ERROR(marker->Finish());
  unfinished_ = false;
  return absl::OkStatus();
}

}  // namespace rekindle::cli
