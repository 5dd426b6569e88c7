// Stores the content of a new image: deduplicates, compresses and writes its pages, then makes it visible.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/image_content.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// See ImageWriter::Commit. `parent` may be null. The content's memory is read until this returns.
absl::StatusOr<ImageInfo> CommitImage(const std::shared_ptr<StoreCore>& core, const NewImageOptions& options,
                                      const ImageReaderImpl* parent, ImageContent& content,
                                      const std::function<bool(uint64_t, uint64_t)>& progress,
                                      const std::function<absl::Status()>& still_held);

// May a new image with these options take the name of this one? AlreadyExists: it is not to replace it;
// PermissionDenied: it is another owner's.
absl::Status MayTakeReference(const NewImageOptions& options, const ImageInfo& of);

}  // namespace rekindle::store
