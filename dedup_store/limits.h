// How much a store may take, and what its owners may. Pure: no I/O.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::store {

// In all of these 0 means no limit.
struct StoreLimits {
  std::map<uid_t, uint64_t> owner_max_bytes;  // of the images that belong to a user
  uint64_t store_max_bytes = 0;               // on disk, of everything
  // New images are refused once this much of the store's file system is taken, by whomever.
  uint32_t high_water_percent = 95;

  // The file LIMITS; docs/store-format.md describes it.
  std::string Encode() const;
  // DataLoss: damaged. FailedPrecondition: written by a newer Rekindle.
  static absl::StatusOr<StoreLimits> Decode(absl::string_view text);
};

struct LimitsChange {
  std::optional<std::pair<uid_t, uint64_t>> owner;
  std::optional<uint64_t> store_max_bytes;
  std::optional<uint32_t> high_water_percent;
};
// InvalidArgument when a value makes no sense; then nothing was changed.
absl::Status Apply(const LimitsChange& change, StoreLimits& limits);

struct FileSystemUse {
  uint64_t total_bytes = 0;  // without what is reserved for root
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
};

// Decides about one image of one owner. A check is OK, or ResourceExhausted with a message that says which
// limit, what is used, what the image needs, and what to do.
class LimitChecks {
 public:
  // How well it is known what the image needs.
  enum class Stage {
    kBegin,    // not at all: refused only when there is no room left already
    kWriting,  // this much, and more to come
    kCommit,   // exactly
  };

  LimitChecks(StoreLimits limits, std::string store_path, uid_t owner)
      : limits_(std::move(limits)), store_path_(std::move(store_path)), owner_(owner) {}

  bool owner_is_limited() const { return limits_.owner_max_bytes.count(owner_) != 0; }
  bool store_is_limited() const { return limits_.store_max_bytes != 0; }
  bool has_high_water() const { return limits_.high_water_percent != 0; }

  // `beside`: of StoreOptions, what counts besides.
  absl::Status Owner(Stage stage, uint64_t used_bytes, uint64_t images, uint64_t needed_bytes,
                     uint64_t beside = 0) const;
  absl::Status Store(Stage stage, uint64_t used_bytes, uint64_t needed_bytes, uint64_t beside = 0) const;
  absl::Status HighWater(Stage stage, const FileSystemUse& use, uint64_t needed_bytes) const;

 private:
  std::string Need(Stage stage, uint64_t bytes) const;

  const StoreLimits limits_;
  const std::string store_path_;
  const uid_t owner_;
};

}  // namespace rekindle::store
