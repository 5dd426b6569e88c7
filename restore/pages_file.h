// CRIU's pages images, made again from the pages in the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "criu/image_files.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// The pagemap of `object` as it is in the image.
absl::StatusOr<criu::Pagemap> ReadPagemap(const store::ImageReader& image, const v1::PagesObject& object);

// Fills the empty `file`, `path` in messages, with the present pages of `pagemap`, in its order; zero pages
// become holes. `pagemap` may have fewer entries than the image's own. Adds what was written to
// `*bytes_done`. `*cancel` ends it soon with Cancelled.
absl::Status WritePagesFile(const store::ImageReader& image, const v1::PagesObject& object,
                            const criu::Pagemap& pagemap, int file, const std::string& path,
                            std::atomic<uint64_t>* bytes_done, const std::atomic<bool>* cancel = nullptr);

}  // namespace rekindle::restore
