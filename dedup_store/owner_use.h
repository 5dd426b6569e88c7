// What the images of each owner take of a store: what counts against quotas.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "dedup_store/store.h"

namespace rekindle::store {

struct OwnerUse {
  uint64_t images = 0;
  // What these brought, and what they need of images that are gone: such pages count for the oldest image
  // that has them.
  uint64_t bytes = 0;
};

// By user id. Thread-safe. Reads the manifests of all images the first time that one which others build upon
// is gone.
absl::StatusOr<std::map<uid_t, OwnerUse>> MeasureOwners(const Store& store);

}  // namespace rekindle::store
