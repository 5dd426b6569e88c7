// Copies what is appended to a log to a descriptor, from a given place on, until told that no more will come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

// Thread-compatible.
class LogFollower {
 public:
  // `output` must stay open for the follower's life.
  static absl::StatusOr<std::unique_ptr<LogFollower>> Start(const std::string& path, uint64_t offset,
                                                            int output);
  ~LogFollower() { Finish(); }

  // Copies what is there by now, and ends.
  void Finish();

 private:
  LogFollower(UniqueFd log, UniqueFd changes, UniqueFd stop, int output);
  void Loop();
  // False when the output takes no more.
  bool CopyWhatIsThere();

  UniqueFd log_, changes_, stop_;
  const int output_;
  std::thread thread_;
};

}  // namespace rekindle::cli
