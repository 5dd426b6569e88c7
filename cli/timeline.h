// The timelines that the service sends: as a file for viewers, and explained to people.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/target_file.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What --trace and --explain ask for.
struct TimelineOptions {
  std::string trace_file;  // empty: none
  bool explain = false;

  bool wanted() const { return !trace_file.empty() || explain; }
};

// In Chrome's trace event format, which Perfetto and chrome://tracing show. Time begins with the first span.
std::string ChromeTrace(const std::vector<v1::Timeline>& timelines);

// Where the time went: a table, then a sentence or two about the largest part.
std::string Explain(const v1::Timeline& timeline);

// A file that is there in whole or not at all. Whether it can be written is known from the beginning.
class TraceFile {
 public:
  static absl::StatusOr<TraceFile> Create(const std::string& path);

  // Once.
  absl::Status Write(const std::string& content);

 private:
  explicit TraceFile(TargetFile file) : file_(std::move(file)) {}

  TargetFile file_;
};

}  // namespace rekindle::cli
