// Dependency images: a runtime with libraries loaded, no function in it, shared by all functions that need
// them. Nothing of a user runs before they are taken: modules come from where the administrator installed
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/node.h"
#include "functions/function_spec.h"

namespace rekindle::daemon {

struct DependencyImage {
  store::ImageInfo info;
  functions::Runtime runtime;
  std::vector<std::string> modules;  // that were asked for, sorted
  uint64_t resident_bytes = 0;       // of the process that it was taken of
  double build_seconds = 0;          // until everything was loaded
};

// Thread-safe.
class DependencyImages {
 public:
  explicit DependencyImages(Node& node) : node_(node) {}

  struct Found {
    DependencyImage image;
    bool unchanged = false;  // it was there
  };
  // An image of exactly these modules (a set), which is made if there is none yet; with `rebuild` in any
  // case. InvalidArgument: a module can't be loaded; the message ends with what the runtime said.
  absl::StatusOr<Found> Build(const functions::Runtime& runtime, const std::vector<std::string>& modules,
                              bool rebuild, const std::function<void(const char* phase)>& progress)
      ABSL_LOCKS_EXCLUDED(building_);
  // The best for a function that needs these: exactly them; else the smallest that has them all and no more
  // than a few times as much memory as it must; else one that is made.
  absl::StatusOr<Found> Cover(const functions::Runtime& runtime, const std::vector<std::string>& modules,
                              const std::function<void(const char* phase)>& progress);
  absl::StatusOr<std::vector<DependencyImage>> List() const;
  // NotFound: it is none.
  absl::StatusOr<DependencyImage> Find(const std::string& reference) const;

 private:
  // From the image of some of the modules, or of none: the rest is loaded on top of that.
  absl::StatusOr<DependencyImage> BuildOn(store::Store& store, const functions::Runtime& runtime,
                                          const std::vector<std::string>& modules,
                                          const std::function<void(const char* phase)>& progress);
  absl::StatusOr<DependencyImage> BuildFromNothing(store::Store& store, const functions::Runtime& runtime,
                                                   const std::vector<std::string>& modules,
                                                   const std::function<void(const char* phase)>& progress);

  Node& node_;
  absl::Mutex building_;  // one at a time: each may need much memory
};

}  // namespace rekindle::daemon
