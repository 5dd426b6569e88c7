// An image on its way into a bucket: one image there, or several, of which each is a part of it and builds
// upon the one before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Not thread-safe. Of what is not complete nothing is left when this goes out of scope.
class BucketUpload {
 public:
  // `image`: what it is to be. No object is longer than `most_bytes`. The bucket outlives this.
  BucketUpload(Bucket& bucket, std::string name, BucketImage image, uint64_t most_bytes)
      : bucket_(bucket), name_(std::move(name)), image_(std::move(image)), most_bytes_(most_bytes) {}
  ~BucketUpload();
  BucketUpload(const BucketUpload&) = delete;
  BucketUpload& operator=(const BucketUpload&) = delete;

  // What is written from now on is this part; the one before is complete.
  absl::Status Begin(const v1::SendImagePart& part);
  // Blocks while rclone is busy. False: it takes no more; Complete says why.
  bool Write(absl::string_view data);
  // All of the image was written; `result` is put beside it.
  absl::Status Complete(const v1::TransferResult& result) { return Close(result); }

  // As it is there once it is complete.
  const BucketImage& image() const { return image_; }
  // Is a part of it there that was put before?
  bool put_part() const { return put_part_; }

 private:
  absl::Status Open(BucketImage coming);
  // What was written is all of what was coming.
  absl::Status Close(const v1::TransferResult& result);

  Bucket& bucket_;
  const std::string name_;
  BucketImage image_;
  const uint64_t most_bytes_;
  BucketImage coming_;
  uint64_t written_ = 0;
  bool opened_ = false, unfinished_ = false, taken_ = true, put_part_ = false;
  bool is_named_ = false;  // what was written last
  absl::Status open_status_;
  std::unique_ptr<BucketTransfer> transfer_;
};

}  // namespace rekindle::cli
