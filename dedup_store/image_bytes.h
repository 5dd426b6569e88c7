// Where the bytes of one image are: Store::WhereBytesAre.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

absl::StatusOr<ImageBytes> FindBytes(const std::shared_ptr<StoreCore>& core, absl::string_view image,
                                     const std::function<bool(const ImageInfo&)>& may_see,
                                     const std::atomic<bool>* cancel);

}  // namespace rekindle::store
