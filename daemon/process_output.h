// What a child process writes to its standard output and error, kept in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// Owned by one thread at a time. Its end waits for the last process that can write.
class ProcessOutput {
 public:
  // The last `most` bytes are kept.
  static absl::StatusOr<std::unique_ptr<ProcessOutput>> Make(size_t most);
  ~ProcessOutput();
  ProcessOutput(const ProcessOutput&) = delete;
  ProcessOutput& operator=(const ProcessOutput&) = delete;

  // For the process; to be closed here once it has it.
  UniqueFd TakeWriteEnd() { return std::move(write_); }
  void Follow();
  // All of it. Waits until nobody can write any more.
  std::string Text();

 private:
  explicit ProcessOutput(size_t most) : most_(most) {}
  const size_t most_;
  UniqueFd read_, write_;
  std::string text_;
  std::thread thread_;
};

}  // namespace rekindle::daemon
