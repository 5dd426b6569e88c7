// Copies what is appended to a log to a descriptor, from a given place on, until told that no more will come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

// The log of a supervised job is cut off where its image had it when the job goes on from that, and the job
// writes on from there. What it writes as it did before is not shown again: the follower knows the content of
// what it has shown last. From the first line on that is another it shows all. Thread-compatible.
class LogFollower {
 public:
  // `output` must stay open for the follower's life.
  static absl::StatusOr<std::unique_ptr<LogFollower>> Start(const std::string& path, uint64_t offset,
                                                            int output);
  ~LogFollower() { Finish(); }

  // Copies what is there by now, and ends.
  void Finish();

 private:
  LogFollower(UniqueFd log, UniqueFd changes, UniqueFd stop, uint64_t offset, int output);
  void Loop();
  // False when the output takes no more.
  bool CopyWhatIsThere();
  bool Show(const std::string& text);
  std::string Read(uint64_t begin, uint64_t end) const;
  // Where the log is not what was shown of it any more; at `shown_until_` when it is. Until then the bytes
  // that are missing at its end may come again.
  uint64_t FirstDifference(uint64_t size) const;
  bool IsAsShown(uint64_t size) const;

  UniqueFd log_, changes_, stop_;
  const int output_;
  // The log up to here has been shown; `shown_` holds the end of that, also what was there before the
  // follower.
  uint64_t shown_until_;
  std::string shown_;
  bool within_line_ = false;  // the output is
  std::thread thread_;
};

}  // namespace rekindle::cli
