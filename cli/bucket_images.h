// The images that a bucket has of one name. Each is two objects in the folder of that name, whose own names
// tell what must be known to choose between images:
//
//   CREATED-ORIGIN-BASE-TAG.image   the image as `rekindle export` writes it, whole or since another one
//   CREATED-ORIGIN-BASE-TAG.json    put when the image is there, with what it is: without this, it is not
//   complete
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/bucket.h"

namespace rekindle::cli {

struct BucketImage {
  int64_t created_unix_ns = 0;  // whole microseconds
  std::string origin;           // as IdOf
  std::string base;             // of the image that it was sent since; empty: it is whole
  std::string tag;
  uint64_t bytes = 0;                           // of its object
  absl::Time written = absl::InfiniteFuture();  // BucketObject

  // The names of its objects.
  std::string ImageObject() const;
  std::string JsonObject() const;
};

// It is a part of another image, which builds upon it; or an older version, which took what another image
// builds upon for an image, has copied it there.
bool IsStrayLink(const BucketImage& image);

// The part of an image's origin that names it in a bucket.
std::string IdOf(absl::string_view origin);

// What was not written since then is on its way no more. `objects`: of a folder, with their times, which may
// be told by another clock than ours.
absl::Time UnfinishedBefore(const std::vector<BucketObject>& objects);

// Thread-safe once made. No function's time grows faster than the number of images.
class BucketImages {
 public:
  // `objects`: what is in the folder. Objects of other names are left alone.
  explicit BucketImages(const std::vector<BucketObject>& objects);

  // Those with both their objects, newest first.
  const std::vector<BucketImage>& complete() const { return complete_; }
  // Those of which one object is not there: on their way, or left of a copy that was broken off. Of one of
  // which the image itself is not there `bytes` is 0.
  const std::vector<BucketImage>& incomplete() const { return incomplete_; }
  // What must be taken in, in this order, to have the image of this origin, from a whole one on; empty: it is
  // not there, or something that it builds upon is not.
  std::vector<BucketImage> Chain(absl::string_view id) const;
  bool HasChain(absl::string_view id) const;
  // Is an image of this origin and tag there, with all that it builds upon?
  bool Has(absl::string_view id, absl::string_view tag) const;
  // The newest one with this tag (empty: any, of those that were put there for their own sake) that has a
  // chain; null: there is none. Valid as long as this is.
  const BucketImage* Newest(absl::string_view tag) const;
  // May another one be built upon this one? A chain is at most 16 images long, and what it has beyond its
  // first one is at most as much as that: who takes it in has no more than twice the work.
  bool MayBuildUpon(absl::string_view id) const;
  // As which it was put: those that it builds upon, the last one first.
  std::vector<BucketImage> PartsOf(const BucketImage& image) const;
  // With its parts.
  uint64_t BytesOf(const BucketImage& image) const;
  enum class Claim {
    kStays,    // another's, or kept besides
    kCounted,  // stays as one of the newest
    kGoes,
  };
  // Objects to be removed so that of the images that are counted only the `keep` newest stay, of which
  // `newest` is the first, whenever it was taken, and what they and others build upon. Of such that are not
  // complete only what was there `unfinished_before`: the others may be on their way; of parts that no image
  // needs, whoever put them, likewise. In this order: an image whose removal is interrupted is no longer
  // complete.
  std::vector<std::string> Superfluous(size_t keep, absl::string_view newest,
                                       const std::function<Claim(const BucketImage& image)>& claim,
                                       absl::Time unfinished_before) const;
  // The tags of images that have a chain, newest first, each once.
  std::vector<std::string> Tags() const;

 private:
  void FindChains();
  // Null: there is none.
  const BucketImage* Find(absl::string_view id) const;

  std::vector<BucketImage> complete_;    // newest first
  std::vector<BucketImage> incomplete_;  // of which only one object is there
  // Of complete_, by origin. Of one that is there twice, the shorter way.
  absl::flat_hash_map<std::string, size_t> by_origin_;
  std::vector<bool> has_chain_;  // of those, by their place in complete_
};

}  // namespace rekindle::cli
