// Layers of functions, each once for all functions of its owner.
//
// In STORE/functions/.layers, which others may enter but not list:
//   UID/DIGEST        its contents, which the owner may read (sealed_folder.h). Functions that need it know
//                     it by this path.
// One goes when nothing refers to it any more: neither a Layer, nor what Tidy is told of.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/file_rights.h"
#include "functions/code_copy.h"
#include "functions/layer_folder.h"

namespace rekindle::functions {

// Whose, and the digest: 64 hexadecimal digits, over names, kinds, permissions, targets of links and
// contents, without those of folders __pycache__.
using LayerKey = std::pair<uid_t, std::string>;

bool IsLayerDigest(absl::string_view text);

// As long as there is one, the layer stays where it is. Thread-safe.
class Layer {
 public:
  ~Layer();
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string& path() const { return path_; }
  const std::string& digest() const { return key_.second; }
  uid_t owner() const { return key_.first; }
  // Where that is not known yet it is looked through, which may take seconds.
  uint64_t bytes() const;

 private:
  friend class LayerStore;
  Layer(LayerKey key, std::string path, std::optional<uint64_t> bytes,
        std::shared_ptr<std::atomic<bool>> any_gone)
      : key_(std::move(key)), path_(std::move(path)), any_gone_(std::move(any_gone)), bytes_(bytes) {}

  const LayerKey key_;
  const std::string path_;
  const std::shared_ptr<std::atomic<bool>> any_gone_;
  mutable absl::Mutex mutex_;
  mutable std::optional<uint64_t> bytes_ ABSL_GUARDED_BY(mutex_);
};
using LayerPtr = std::shared_ptr<const Layer>;

// What is done to a new copy before anybody uses it: `staged` is where it lies, sealed already, `path` where
// it is going to. May add what does not count for its digest (CodeCopyOptions::without_compiled). An error:
// there is no layer.
using PrepareLayer = std::function<absl::Status(const std::string& staged, const std::string& path)>;

// Thread-safe. One process at a time has the layers of a store: who has its FunctionCatalog.
class LayerStore {
 public:
  // `functions`: STORE/functions.
  explicit LayerStore(std::string functions) : functions_(std::move(functions)) {}

  // The layer with the contents of this folder, with the owner's rights over files: the one that is there, or
  // a copy. What of that is limited by `options`, and what is asked and told, counts what is copied alone.
  // Errors of CodeCopier, and FailedPrecondition where no runtime could find what lies in the layer.
  absl::StatusOr<LayerPtr> Bring(const LayerFolder& folder, const Owner& owner,
                                 const CodeCopyOptions& options, const PrepareLayer& prepare = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound: there is no such layer. Any other error: it can't be looked at now.
  absl::StatusOr<LayerPtr> Find(const LayerKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Seals those that an older version has left to their owners.
  void SealAll();

  // Bytes of all there are.
  std::map<LayerKey, uint64_t> Sizes() ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes those to which no Layer refers, and which are not among `wanted`; that is asked when none of them
  // can be taken into use. Its error: nothing is removed.
  void Tidy(const std::function<absl::StatusOr<std::set<LayerKey>>()>& wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether something may have become superfluous since this was asked the last time.
  bool TakeAnyGone() { return any_gone_->exchange(false); }

 private:
  std::string PathOf(const LayerKey& key) const;
  // As Find.
  absl::StatusOr<LayerPtr> Present(const LayerKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t SizeOf(const LayerKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<LayerKey> All() const;

  const std::string functions_;
  const std::shared_ptr<std::atomic<bool>> any_gone_ = std::make_shared<std::atomic<bool>>(false);
  absl::Mutex mutex_;
  std::map<LayerKey, std::weak_ptr<const Layer>> layers_ ABSL_GUARDED_BY(mutex_);
  std::map<LayerKey, uint64_t> sizes_ ABSL_GUARDED_BY(mutex_);  // of those that were measured
};

}  // namespace rekindle::functions
