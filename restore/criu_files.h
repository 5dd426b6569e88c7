// CRIU's small image files in an image of the store.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

// The content of the file that CRIU calls `name` ("pstree.img"). NotFound: the image has none. Thread-safe.
absl::StatusOr<std::string> ReadCriuFile(const store::ImageReader& image, absl::string_view name);
// The same of one that need not be there: empty.
absl::StatusOr<std::string> ReadCriuFileIfAny(const store::ImageReader& image, absl::string_view name);

}  // namespace rekindle::restore
