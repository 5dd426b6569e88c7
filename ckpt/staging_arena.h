// RAM that takes a frozen job's memory as fast as it comes: reserved, advised to huge pages and touched
// before the freeze, because the first touch of a page costs more than copying it. Past its budget, or what
// the kernel lets this process have (`ulimit -v`, vm.overcommit_memory=2), it goes on in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "dedup_store/image_in_memory.h"

namespace rekindle::ckpt {

// How many threads make and fill memory in the shortest time here: more than a few are of use where each has
// its own way to memory, as on machines with many processors.
size_t CopyThreads();

// What an arena leaves to the next one, for a job that is captured again and again: to clear 1 GiB of new
// pages takes more of the processors than all else that an image of it costs. Until then it has the last
// image's pages, for when the job is brought back before. Between two captures the kernel may take the pages
// back whenever it wants them (MADV_FREE), and they count as available. Not thread-safe.
class KeptStaging {
 public:
  KeptStaging() = default;
  ~KeptStaging() { Drop(); }
  KeptStaging(const KeptStaging&) = delete;
  KeptStaging& operator=(const KeptStaging&) = delete;

  bool empty() const { return base_ == nullptr; }
  void Drop();

  // Valid until the next arena is made.
  const store::ImageInMemory& image() const { return image_; }
  // Whoever has read it has kept the kernel from having it.
  void LetKernelHaveIt();

 private:
  friend class StagingArena;
  std::byte* base_ = nullptr;
  uint64_t reserved_bytes_ = 0, usable_bytes_ = 0;
  store::ImageInMemory image_;
};

// Thread-safe. Blocks live as long as the arena.
class StagingArena {
 public:
  static constexpr size_t kBlockBytes = 4u << 20;
  static constexpr char kMoreBudget[] = "give more with --staging-memory";

  // Prepares `expected_bytes` of room, of which at most `budget_bytes` in RAM; what comes beyond either is
  // taken from RAM up to the budget, then from an unlinked file in `spill_directory`. `kept` may be null,
  // else it outlives the arena: it gives what the arena before left, and gets what this one leaves.
  // `more_budget`: how a user gives a larger budget, for errors.
  static absl::StatusOr<std::unique_ptr<StagingArena>> Create(uint64_t expected_bytes, uint64_t budget_bytes,
                                                              const std::string& spill_directory,
                                                              KeptStaging* kept = nullptr,
                                                              const char* more_budget = kMoreBudget);
  ~StagingArena();
  StagingArena(const StagingArena&) = delete;
  StagingArena& operator=(const StagingArena&) = delete;

  // The next kBlockBytes of room. Blocks given out one after another are neighbours in memory where possible.
  // ResourceExhausted when the spill file finds no room.
  absl::StatusOr<absl::Span<std::byte>> NextBlock() ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t spilled_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether what was read from the blocks until now is what was put into them: DataLoss when a disk could not
  // take what was spilled, of which the kernel forgets the pages then. Writes nothing, and costs nothing
  // where nothing was spilled.
  absl::Status CheckSpilled() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What to do for less of it to go into the file: "give more with --staging-memory".
  std::string how_to_spill_less() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The blocks hold an image that is stored now. For who gets what this leaves.
  void HoldsImage(store::ImageInMemory image) { image_ = std::move(image); }

 private:
  StagingArena(uint64_t budget_bytes, std::string spill_directory, KeptStaging* kept, const char* more_budget)
      : budget_bytes_(budget_bytes),
        spill_directory_(std::move(spill_directory)),
        kept_(kept),
        more_budget_(more_budget) {}

  void ReserveAndTouch(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Reserve(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the kernel promise memory for the first `bytes` of what is reserved, or for as many as it does.
  void MakeUsable(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string HowToSpillLess() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<absl::Span<std::byte>> NextSpillBlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t budget_bytes_;
  const std::string spill_directory_;
  KeptStaging* const kept_;
  const char* const more_budget_;
  std::byte* base_ = nullptr;
  uint64_t reserved_bytes_ = 0;  // of addresses
  store::ImageInMemory image_;   // of the thread that makes the image

  mutable absl::Mutex mutex_;
  uint64_t usable_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // what lies past the touched part is backed on demand
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  UniqueFd spill_file_ ABSL_GUARDED_BY(mutex_);
  uint64_t spilled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<void*> spill_blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::ckpt
