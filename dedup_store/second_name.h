// A second name for an image: another image of the same content, with labels and an owner of its own, that
// shares all pages with the first. Either can go, and the other stays whole.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "dedup_store/store.h"

namespace rekindle::store {

struct SecondNameOptions {
  std::string reference;  // as NewImageOptions::reference
  uid_t owner = 0;
  bool replace = false, replace_others = false;  // as in NewImageOptions
  std::map<std::string, std::string> labels;     // all that it gets
  const std::atomic<bool>* cancel = nullptr;     // ends it soon with Cancelled; nothing of it is left
};

// Makes an image with the content, and so the digest, of this very `image`, whose parent it is. It costs
// metadata and time for these alone; pages are neither read nor written. It is as young as a new image.
// DataLoss: `image` is damaged. Otherwise errors are those of Store::OpenImage and ImageWriter. Thread-safe.
absl::StatusOr<ImageInfo> AddSecondName(Store& store, const ImageInfo& image,
                                        const SecondNameOptions& options);

}  // namespace rekindle::store
