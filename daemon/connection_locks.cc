#include "daemon/connection_locks.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "criu/connection_lock.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

absl::StatusOr<std::string> RunOf(const store::Store& store, const store::ImageInfo& image) {
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<store::ImageReader> reader, store.OpenImage(image.digest));
  RK_ASSIGN_OR_RETURN(const std::string content,
                      reader->ReadBlob(absl::StrCat(v1::kCriuFilePrefix, "inventory.img")));
  RK_ASSIGN_OR_RETURN(criu::Inventory inventory, criu::ParseInventory(content));
  return std::move(inventory.run);
}

}  // namespace

ConnectionLocks::ConnectionLocks(const store::Store& store, absl::Span<const store::ImageInfo> images)
    : store_(store) {
  for (const store::ImageInfo& image : images) {
    // A copy's original may still be restored.
    if (!image.labels.contains(v1::kConnectionLockLabel) || image.labels.contains(v1::kOriginLabel)) continue;
    // One that can't be read is removed all the same.
    if (absl::StatusOr<std::string> run = RunOf(store, image); run.ok())
      runs_[image.digest] = *std::move(run);
  }
}

void ConnectionLocks::RemoveOf(const store::ImageInfo& image) const {
  auto run = runs_.find(image.digest);
  if (run == runs_.end()) return;
  const absl::Status there = store_.Find(image.digest).status();
  if (there.ok()) return;
  // A table too many is better than an image that has lost its connections.
  if (!absl::IsNotFound(there)) {
    Log(LogLevel::kWarning,
        absl::StrCat("what holds back the packets of the peers of image ", image.reference,
                     " stays, since it is not known whether it has another name: ", there.message()));
    return;
  }
  const absl::Status removed = criu::RemoveConnectionLock(run->second);
  if (!removed.ok())
    Log(LogLevel::kWarning, absl::StrCat("image ", image.reference, " is removed: ", removed.message()));
}

}  // namespace rekindle::daemon
