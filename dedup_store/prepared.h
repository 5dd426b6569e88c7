// Images that are whole and durable but not there for anybody yet: see NewImageOptions::prepared_id.
//
// In the catalog such an image has the reference "+ID+name:tag", which nobody can write: making it visible is
// one transaction that gives it its own. A catalog made again from the packs has it as it was written first:
// prepared, unless another image has taken its name since.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/catalog.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// Of the catalog's references the prepared ones, and no others, begin with it.
inline constexpr absl::string_view kPreparedPrefix = "+";

inline bool IsPrepared(const ImageInfo& info) {
  return !info.reference.empty() && info.reference[0] == kPreparedPrefix[0];
}

// InvalidArgument: an id has 1 to 128 letters, digits, '-', '_' and '.'.
absl::Status CheckPreparedId(absl::string_view id);
std::string PreparedReference(absl::string_view id, absl::string_view reference);
// What a prepared image will be called.
std::string ComingReference(const ImageInfo& prepared);

// AlreadyExists: a prepared image is about to take this name, or has this id (empty: of none).
absl::Status NobodyPrepares(Catalog::Txn& txn, absl::string_view reference, absl::string_view id);

// See Store.
absl::StatusOr<std::vector<PreparedImage>> ListPrepared(const StoreCore& core);
absl::StatusOr<ImageInfo> PublishPrepared(StoreCore& core, absl::string_view id);
absl::Status RemovePrepared(StoreCore& core, absl::string_view id);

}  // namespace rekindle::store
