// `rekindle ls`: the images of the store at hand, or of a place that images are copied to.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/bucket.h"
#include "cli/client.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct ImageListing {
  std::vector<std::string> texts;  // only images whose name has one of these; none: all
  // As CopyImage's; empty: the store at hand.
  std::string from;
  std::string bucket;
};

// That a text is in no image's name is a note on standard error, and no failure: who looks for the images of
// a job may be the one who starts it for the first time.
int ListImages(Client& client, const Output& output, const ImageListing& what);

// What is of one name at a place (a daemon, a store's folder, or an object store: `bucket`), newest first. A
// place that does not answer is given up after a minute or two. Of an object store as ImagesOfObjects; with
// `here` (else null), the images of that name here, with the labels that each had where it was taken: then
// only of those that are here and of the newest hundred others, and it fails where they can't be read now.
absl::StatusOr<std::vector<v1::Image>> ImagesElsewhere(const GlobalOptions& globals, const std::string& from,
                                                       const std::string& bucket, const std::string& name,
                                                       const std::vector<v1::Image>* here);

// Where `what.from` says. A place that does not answer is given up after a minute or two.
int ListImagesElsewhere(const GlobalOptions& globals, const Output& output, const ImageListing& what);

// What an object store holds, by its listing alone: names, sizes there, and when the images were taken; of
// the digest of each where it was taken the beginning, as kOriginLabel. Newest first, each name once: the one
// that a copy from there takes. `damaged`: what it builds upon is not there.
std::vector<v1::Image> ImagesOfObjects(const std::vector<BucketObject>& objects);

}  // namespace rekindle::cli
