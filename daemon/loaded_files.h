// What a dependency image has loaded: programs, libraries and modules, as they were. An upgrade of a package,
// or of Rekindle, makes other ones of them, which a process that is started from nothing would have; so the
// image is to be made anew.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::daemon {

// The time of files, and one that nobody sets.
struct ClockReading {
  int64_t unix_ns = 0, boot_ns = 0;
  static ClockReading Now();
};

// Thread-compatible.
class LoadedFiles {
 public:
  // `command`: what its runtime is started with, program and script.
  explicit LoadedFiles(std::vector<std::string> command = {}) : command_(std::move(command)) {}

  // Takes down as they are now programs and libraries that a process has mapped, and these paths
  // (NUL-separated; what is no absolute path of a regular file, in UTF-8, is left out). What has changed
  // since `began`, whose clock may have been set once since, is taken for changed from then on: nobody knows
  // which one was loaded. What is of the future has not: the clock is behind, or was when it was installed.
  // `own`: of which paths nothing is taken down, since the process has other files there than the machine;
  // null: of none.
  void Add(pid_t pid, absl::string_view paths, const ClockReading& began,
           const std::function<bool(const std::string& path)>& own = nullptr,
           const std::function<ClockReading()>& clock = ClockReading::Now);
  // Of an image that lies below: those it had before.
  void AddBelow(const LoadedFiles& below);

  // Why a runtime that is started with `command` now would have loaded something else: "PATH has changed".
  // Nothing: it would not.
  std::optional<std::string> Change(const std::vector<std::string>& command) const;

  size_t size() const { return files_.size(); }
  std::string Encode() const;
  // DataLoss: the bytes are no such list.
  static absl::StatusOr<LoadedFiles> Decode(absl::string_view bytes);

 private:
  struct State {
    uint64_t bytes = 0;
    int64_t modified_ns = 0;  // of the Unix epoch
    friend bool operator==(const State& a, const State& b) = default;
  };
  static std::optional<State> StateOf(const std::string& path, int64_t* changed_ns);

  std::vector<std::string> command_;
  std::map<std::string, State> files_;  // by path
};

}  // namespace rekindle::daemon
