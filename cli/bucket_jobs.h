// Of which jobs the images are that a bucket has of one name. Names belong to nobody: two jobs may be copied
// to one folder, at the same time or one after the other.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// `markers`: what was put beside images, one JSON object after the other. Of each its reference, digest and
// labels. What is no such object is passed over.
std::vector<v1::Image> ImagesOfMarkers(absl::string_view markers);

// Names a copy in a bucket, as that has no two of: IdOf its origin, and its tag.
using BucketKey = std::pair<std::string, std::string>;
BucketKey KeyOf(const BucketImage& image);
BucketKey KeyOf(const v1::Image& image);

// What the images of one name in a bucket say of themselves, each asked once.
class BucketMarkers {
 public:
  // Asks those of `images` of which it does not know what they say, `most` of them at most. A failure leaves
  // them to the next time.
  absl::Status Read(Bucket& bucket, const std::string& name, const std::vector<BucketImage>& images,
                    size_t most = std::numeric_limits<size_t>::max());
  // That is known without being asked.
  void Note(const v1::Image& image) { known_[KeyOf(image)] = image; }
  // Forgets others than these, once there are many: of who follows a job for months.
  void Keep(const std::vector<BucketImage>& images);
  // Null: it is not known.
  const v1::Image* Find(const BucketKey& key) const;

 private:
  std::map<BucketKey, v1::Image> known_;
  std::set<BucketKey> in_vain_;  // asked, and what is there can't be understood
};

// By the id of each image (IdOf its origin): what tells its job from others, on whatever node it runs.
// An image of which nothing is known is not in it.
std::map<std::string, std::string> JobsOf(absl::string_view markers);

// The newest image of another job that ran, to go by when images were taken, at the same time as the one of
// the newest image; null: there is none. `images`: newest first.
const BucketImage* NewestOfRival(const std::vector<BucketImage>& images,
                                 const std::map<std::string, std::string>& jobs);

}  // namespace rekindle::cli
