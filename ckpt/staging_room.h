// How much RAM a capture may take to stage its job's memory in, beside the other captures of this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace rekindle::ckpt {

// Every capture takes its own one, and lets it go when it has touched what it takes: until then the kernel
// counts that as available, and the other captures do not. Take() is thread-safe.
class StagingRoom {
 public:
  struct Wanted {
    uint64_t bytes = 0;         // to be touched
    uint64_t budget_bytes = 0;  // at most; 0: half of what is free...
    uint64_t beside_bytes = 0;  // ...beside these, which the job itself and the store will take
  };

  // Waits for the others where what they have not touched yet may make the difference, and only then.
  // Cancelled: `*cancel` (may be null) was set meanwhile.
  static absl::StatusOr<StagingRoom> Take(const Wanted& wanted, const std::atomic<bool>* cancel);
  StagingRoom(StagingRoom&& other) noexcept
      : available_bytes_(other.available_bytes_),
        budget_bytes_(other.budget_bytes_),
        untouched_bytes_(std::exchange(other.untouched_bytes_, 0)) {}
  StagingRoom& operator=(StagingRoom&&) = delete;
  ~StagingRoom();

  uint64_t available_bytes() const { return available_bytes_; }  // to whomever, when it was taken
  uint64_t budget_bytes() const { return budget_bytes_; }

 private:
  friend class AllRooms;
  StagingRoom(uint64_t available, uint64_t budget, uint64_t untouched)
      : available_bytes_(available), budget_bytes_(budget), untouched_bytes_(untouched) {}

  const uint64_t available_bytes_, budget_bytes_;
  uint64_t untouched_bytes_;
};

}  // namespace rekindle::ckpt
