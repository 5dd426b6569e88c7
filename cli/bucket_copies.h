// Copies of images in a bucket, and images that are made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"
#include "cli/client.h"
#include "cli/copy_source.h"
#include "cli/other_starts.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What is left out is what the newest image of the same name has that the bucket has, too, as long as that
// takes no too long chain of images (BucketImages::MayBuildUpon).
class BucketCopies : public CopyTarget {
 public:
  // All outlive this.
  BucketCopies(Client& from, Bucket& to, const Output& output, CopyOptions options)
      : from_(from), bucket_(to), source_(from), output_(output), options_(std::move(options)) {}

  absl::Status Copy(const v1::Image& image) override;
  bool LeftParts() const override { return left_parts_; }
  void Remember(const std::vector<std::string>& origins) override { source_.Remember(origins); }
  absl::Status Prune(const std::string& name, const v1::Image& sent,
                     std::optional<std::vector<std::string>>* there) override;
  absl::Status Check(const std::string& name) override;
  const std::string& OtherStart() const override { return other_starts_.told(); }
  void Cancel() override { bucket_.Cancel(); }

 private:
  // That somebody else puts images of the name of this one there, too, since the last look: of the same job,
  // or, which is told once, of another.
  absl::Status WarnOfOthers(const v1::Image& image, const BucketImages& images);
  // In the objects' names, so that the newest is the last one that was taken, not the one with the latest
  // time.
  absl::StatusOr<int64_t> CreatedFor(const v1::Image& image, const BucketImages& images);
  absl::Status CopyOnce(const v1::Image& image);
  // All objects. What fails leaves parts alone. `copy` gets the base that it has there.
  absl::StatusOr<v1::TransferResult> Put(const v1::SendImageRequest& request, const std::string& name,
                                         BucketImage* copy, uint64_t most_bytes);

  Client& from_;
  Bucket& bucket_;
  CopySource source_;
  const Output& output_;
  const CopyOptions options_;
  OtherStarts other_starts_;
  bool told_ = false;
  bool has_part_ = false;  // of the image on its way, complete
  bool left_parts_ = false;
  BucketMarkers markers_;
  std::optional<std::vector<BucketObject>> after_copy_;  // what is there, as the last Copy has seen
};

// Takes in the image of this name and tag, without a tag the newest one of this name, and before it what it
// builds upon, which does not stay as an image: only where the bucket or the user has ended it on the way,
// for the next attempt. Prints what was done. NotFound: the bucket has no such image.
absl::Status TakeFromBucket(Bucket& bucket, Client& client, const Output& output, const std::string& image,
                            const v1::ReceiveImageBegin& begin, const std::string& where,
                            const CopyWords& words);

}  // namespace rekindle::cli
