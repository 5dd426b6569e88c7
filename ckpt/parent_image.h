// The image against which a new one is deduplicated, where the user names none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dedup_store/store.h"

namespace rekindle::ckpt {

// Begins `image`, which has its labels, with the best parent of its owner's that can be used: the newest of
// the same job (v1::kJobIdLabel), then the newest of the same name. One that is damaged costs room in the
// store, not the new image: it is passed over, with a warning.
absl::StatusOr<std::unique_ptr<store::ImageWriter>> BeginWithBestParent(store::Store& store,
                                                                        store::NewImageOptions image,
                                                                        std::vector<std::string>* warnings);

}  // namespace rekindle::ckpt
