// Writes one image: AddBlob and AddPages note what is to be stored; Commit does the work, unless pages are to
// be stored while they come.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

absl::StatusOr<std::unique_ptr<ImageWriter>> NewImageWriter(std::shared_ptr<StoreCore> core,
                                                            const NewImageOptions& options);

}  // namespace rekindle::store
