// Stores the content of a new image: deduplicates, compresses and writes its pages, then makes it visible.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/image_content.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// Not thread-safe. Destroying it leaves nothing of what was not committed.
class ImageCommit {
 public:
  virtual ~ImageCommit() = default;
  // Pages of the content that were just added to it: they are stored in the background while more come. What
  // has gone wrong with the ones before. Either all are given to it, or none.
  virtual absl::Status StoreEarly(absl::string_view object, const ContentRange& range) = 0;
  // See ImageWriter::Commit. Once.
  virtual absl::StatusOr<ImageInfo> Finish(const std::function<bool(uint64_t, uint64_t)>& progress,
                                           const std::function<absl::Status()>& still_held) = 0;
};

// `parent` may be null. All that is given is used, and the content's memory read, until the result goes.
std::unique_ptr<ImageCommit> NewImageCommit(const std::shared_ptr<StoreCore>& core,
                                            const NewImageOptions& options, const ImageReaderImpl* parent,
                                            ImageContent& content);

// May a new image with these options take the name of this one? AlreadyExists: it is not to replace it;
// PermissionDenied: it is another owner's.
absl::Status MayTakeReference(const NewImageOptions& options, const ImageInfo& of);

}  // namespace rekindle::store
