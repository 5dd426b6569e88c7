// Of which jobs the images are that a bucket has of one name. Names belong to nobody: two jobs may be copied
// to one folder, at the same time or one after the other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/bucket_images.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// `markers`: what was put beside images, one JSON object after the other. Of each its reference, digest and
// labels. What is no such object ends the list.
std::vector<v1::Image> ImagesOfMarkers(absl::string_view markers);

// By the id of each image (IdOf its origin): what tells its job from others, on whatever node it runs.
// An image of which nothing is known is not in it.
std::map<std::string, std::string> JobsOf(absl::string_view markers);

// The newest image of another job that ran, to go by when images were taken, at the same time as the one of
// the newest image; null: there is none. `images`: newest first.
const BucketImage* NewestOfRival(const std::vector<BucketImage>& images,
                                 const std::map<std::string, std::string>& jobs);

}  // namespace rekindle::cli
