// Pieces of images' blob streams that were read and verified. Many blobs lie in one frame, and a restore asks
// for each of them, some three times: without this, each time would read and decompress the frame.
//
// One for all readers of a store, because some readers live as long as the jobs that were made from them.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::store {

// Thread-safe.
class BlobCache {
 public:
  // Of a piece; the last one of a stream may be shorter. So much is read by several threads.
  static constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
  // Of all pieces. One of them may be more.
  static constexpr uint64_t kMostBytes = uint64_t{32} << 20;

  uint64_t NewReader();
  void ForgetReader(uint64_t reader);

  // Null: it is not there, or not any more.
  std::shared_ptr<const std::string> Find(uint64_t reader, uint64_t piece);
  // Takes those out that were not asked for for the longest time.
  void Put(uint64_t reader, uint64_t piece, std::shared_ptr<const std::string> bytes);

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // reader, piece
  struct Entry {
    Key key;
    std::shared_ptr<const std::string> bytes;
  };

  absl::Mutex mutex_;
  uint64_t last_reader_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the last used first
  absl::flat_hash_map<Key, std::list<Entry>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::store
