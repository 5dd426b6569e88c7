// What becomes of the timelines of one command (--trace, --explain).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/output.h"
#include "cli/timeline.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Used as soon as the last has come, for the job may run long. Not thread-safe. `output` and `options`
// outlive it.
class TimelineReport {
 public:
  // Fails where the file can't be written. `expected`: so many timelines come, unless copies fail.
  static absl::StatusOr<TimelineReport> Prepare(const Output& output, const TimelineOptions& options,
                                                size_t expected);

  void Add(const v1::Timeline& timeline);
  // After the last, also where fewer came: some copies could not be started.
  void Use();

 private:
  TimelineReport(const Output& output, const TimelineOptions& options, size_t expected,
                 std::optional<TraceFile> file)
      : output_(output), options_(options), expected_(expected), file_(std::move(file)) {}

  const Output& output_;
  const TimelineOptions& options_;
  const size_t expected_;
  std::optional<TraceFile> file_;
  std::vector<v1::Timeline> all_;
  bool used_ = false;
};

}  // namespace rekindle::cli
