// What holds back the packets of a stopped job's peers until the job is restored (criu/connection_lock.h): it
// goes with the job's image.
#pragma once

#include <map>
#include <string>

#include "absl/types/span.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {

// Of some images that are about to be removed.
class ConnectionLocks {
 public:
  // Reads what is needed for it, of those few that may have left one.
  ConnectionLocks(const store::Store& store, absl::Span<const store::ImageInfo> images);
  // Of this one, which has been removed. Not where the store has the same image under another name.
  void RemoveOf(const store::ImageInfo& image) const;

 private:
  const store::Store& store_;
  std::map<std::string, std::string> runs_;  // by digest
};

}  // namespace rekindle::daemon
