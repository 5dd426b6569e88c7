#include "daemon/old_copy_links.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/removal.h"
#include "rekindle/v1/copy_link.h"

namespace rekindle::daemon {

absl::Status RemoveOldCopyLinks(Node& node, store::Store& store) {
  const int64_t latest = UnixNanos() - absl::ToInt64Nanoseconds(absl::Hours(24));
  RK_ASSIGN_OR_RETURN(const std::vector<store::ImageInfo> old, store.List([&](const store::ImageInfo& image) {
    return image.created_unix_ns <= latest && v1::IsCopyLink(image.reference, image.labels);
  }));
  const absl::Span<const store::ImageInfo> all(old);
  for (size_t done = 0; done < all.size(); done += store::kRemovedAtOnce)
    RK_RETURN_IF_ERROR(store::RemoveExactly(store, all.subspan(done, store::kRemovedAtOnce)).status());
  if (old.empty()) return absl::OkStatus();
  node.clones().ForgetRemovedImages(store);
  Log(LogLevel::kInfo, absl::StrCat("gc: ", old.size(), " images went that a broken copy had left"));
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
