// Dependency images: a runtime with libraries loaded, no function in it, shared by all functions that need
// them. Nothing of a user runs before they are taken: modules come from where the administrator installed
// them, and are loaded in a sandbox, where nothing is to be found that users have left for them.
//
// Those that have modules of a user's layers, too, are that user's: they are loaded as him, on top of a
// shared image, and functions of nobody else start from them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/cancellation.h"
#include "daemon/damaged_images.h"
#include "daemon/node.h"
#include "daemon/refused_images.h"
#include "functions/fair_turns.h"
#include "functions/function_spec.h"
#include "functions/layer_store.h"

namespace rekindle::daemon {

struct DependencyImage {
  store::ImageInfo info;
  functions::Runtime runtime;
  std::vector<std::string> modules;  // that were asked for, sorted
  uint64_t resident_bytes = 0;       // of the process that it was taken of
  double build_seconds = 0;          // until everything was loaded
  uid_t asked_by = 0;                // for whom it was first made
  // Of an image with modules of layers, which is its owner's; empty: it is shared.
  std::vector<std::string> layers;     // their digests, in order
  std::vector<std::string> of_layers;  // of the modules: those that come from them
  std::string run_as;                  // RunAsText of whom its process is, with all his groups
  bool kept = false;                   // also when no function uses it: it was asked for by itself
  // For people: what was drawn at random when its modules were loaded, and all its copies have in common, as
  // "MODULE: uuid.uuid4". From a shared one of that kind only who asks for exactly its modules starts.
  std::vector<std::string> drawn;

  bool is_shared() const { return layers.empty(); }
  // Or it is not known, since an earlier Rekindle made it.
  bool MayHaveDrawn() const;
  // May functions of this user start from it? A copy is already who it is, and becomes nobody else.
  bool MayBeUsedBy(const Owner& user) const;
};

// Nothing: it is none, whatever it says of itself.
std::optional<DependencyImage> DependencyImageFrom(const store::ImageInfo& info);
// For people: the first few of these, which users' code may have written.
std::string SomeOf(const std::vector<std::string>& texts);
// What those should know who start from an image in which this was drawn.
std::string WarnOfDrawnIn(const std::string& reference, const std::vector<std::string>& drawn);
// Says so of itself; whether it is a dependency image Find tells.
bool HasModulesOfLayers(const store::ImageInfo& image);

// Where modules come from that the machine does not have for all programs.
struct OwnersLayers {
  Owner owner;                              // as whom they are loaded
  std::vector<functions::LayerPtr> layers;  // later ones hide earlier ones
  std::vector<std::string> modules;         // of those that are wanted: what comes from them; not empty
};

// Of these one user may have so many made that load modules. They are the service's own, so no quota counts
// them, and only an administrator removes them.
inline constexpr size_t kMostDependencyImagesOfOne = 64;
// ResourceExhausted: `user` has them. Those with modules of layers count apart: they are his own, and against
// his quota besides.
absl::Status MayHaveOneMore(const std::vector<DependencyImage>& images, uid_t user, bool of_layers = false);

// How their names begin.
inline constexpr char kDependencyImages[] = "deps/";

// Thread-safe.
class DependencyImages {
 public:
  // `made` is told of each image that has been made, before Build returns, and on its thread: also of one
  // that others are to lie on. There may have been one of that reference, which functions still start from.
  // `damaged`, `refused`: what is so is not built upon, and has changed; they hear of what is found here.
  DependencyImages(Node& node, std::shared_ptr<DamagedImages> damaged, std::shared_ptr<RefusedImages> refused,
                   std::function<void(const std::string& reference)> made)
      : node_(node),
        damaged_(std::move(damaged)),
        refused_(std::move(refused)),
        made_(std::move(made)),
        turns_(kBuilds, kBuildsOfOne) {}

  struct Found {
    DependencyImage image;
    bool unchanged = false;  // it was there
  };
  // An image of exactly these modules (a set), which is made if there is none yet, or another one would be
  // made now (see Change); with `rebuild` in any case. `user`: for whom; a few are made side by side, one for
  // each user. InvalidArgument: a module can't be loaded; the message ends with what the runtime said.
  // ResourceExhausted: see MayHaveOneMore. `cancel` (may be null) ends it with Cancelled.
  absl::StatusOr<Found> Build(const functions::Runtime& runtime, const std::vector<std::string>& modules,
                              bool rebuild, uid_t user,
                              const std::function<void(const char* phase)>& progress,
                              const Cancellation* cancel) ABSL_LOCKS_EXCLUDED(mutex_);
  // The best for a function that needs these: exactly them; else the smallest that has them all and no more
  // than a few times as much memory as it must; else one that is made.
  absl::StatusOr<Found> Cover(const functions::Runtime& runtime, const std::vector<std::string>& modules,
                              uid_t user, const std::function<void(const char* phase)>& progress,
                              const Cancellation* cancel);
  // The same for modules of which some come from a user's layers. `kept`: see DependencyImage.
  absl::StatusOr<Found> BuildWithLayers(const functions::Runtime& runtime,
                                        const std::vector<std::string>& modules, const OwnersLayers& layers,
                                        bool rebuild, bool kept,
                                        const std::function<void(const char* phase)>& progress,
                                        const Cancellation* cancel) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Found> CoverWithLayers(const functions::Runtime& runtime,
                                        const std::vector<std::string>& modules, const OwnersLayers& layers,
                                        const std::function<void(const char* phase)>& progress,
                                        const Cancellation* cancel);
  absl::StatusOr<std::vector<DependencyImage>> List() const;
  // NotFound: it is none.
  absl::StatusOr<DependencyImage> Find(const std::string& reference) const;
  // Why an image that is made now would be another one: what it has loaded was upgraded since, a start from
  // it was refused for other files that have changed, or it is damaged. Nothing: it would not, or none can be
  // made now.
  std::optional<std::string> Change(const DependencyImage& image) const;

 private:
  // Each may need much memory, and its libraries all cores.
  static constexpr int kBuilds = 2, kBuildsOfOne = 1;

  // As Find; NotFound, too: it is there, and another one would be made now.
  absl::StatusOr<DependencyImage> FindUnchanged(const std::string& reference) const;

  // As long as an image is being made: nobody else makes one of its name.
  class InWork;
  // What is to be made.
  struct Order {
    functions::Runtime runtime;
    std::vector<std::string> modules;      // sorted, each once
    const OwnersLayers* layers = nullptr;  // null: it is to be shared
    bool rebuild = false, kept = false;
    uid_t user = 0;  // for whom
    std::string Reference() const;
    std::string What() const;  // for errors
  };
  absl::StatusOr<Found> BuildOrder(const Order& order, const std::function<void(const char* phase)>& progress,
                                   const Cancellation* cancel) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same once. `base_has_gone`: what it was to lie on was there, and then not any more.
  absl::StatusOr<Found> TryBuild(const Order& order, const std::function<void(const char* phase)>& progress,
                                 const Cancellation* cancel, bool* base_has_gone) ABSL_LOCKS_EXCLUDED(mutex_);
  // The image of the most of these modules, but not all, that there is; `bare`: that of none. NotFound.
  absl::StatusOr<DependencyImage> BaseFor(const functions::Runtime& runtime,
                                          const std::vector<std::string>& modules, bool bare) const;
  // Of the modules that do not come from layers, shared, as it would be made now.
  absl::StatusOr<DependencyImage> BaseForLayers(const Order& order,
                                                const std::function<void(const char* phase)>& progress,
                                                const Cancellation* cancel);
  // The rest of the modules is loaded on top of that.
  absl::StatusOr<DependencyImage> BuildOn(store::Store& store, const Order& order,
                                          const DependencyImage& base, uid_t asked_by,
                                          const std::function<void(const char* phase)>& progress,
                                          const Cancellation* cancel);
  // From nothing: the runtime alone, outside of any sandbox. So it loads nothing that anybody has chosen.
  absl::StatusOr<DependencyImage> BuildBare(store::Store& store, const functions::Runtime& runtime,
                                            uid_t asked_by,
                                            const std::function<void(const char* phase)>& progress,
                                            const Cancellation* cancel);

  Node& node_;
  const std::shared_ptr<DamagedImages> damaged_;
  const std::shared_ptr<RefusedImages> refused_;
  const std::function<void(const std::string& reference)> made_;
  absl::Mutex mutex_;
  std::set<std::string> in_work_ ABSL_GUARDED_BY(mutex_);  // references
  functions::FairTurns turns_;                             // taken before a reference
};

}  // namespace rekindle::daemon
