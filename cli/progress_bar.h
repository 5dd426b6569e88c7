// How far a long operation is, on a terminal; nothing in a pipe.
#pragma once

#include <string>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Draws on standard error. Not thread-safe.
class ProgressBar {
 public:
  // Shown only when `enabled` and `fd` is a terminal.
  ProgressBar(int fd, bool enabled);
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(const v1::Progress& progress);
  // Before anything else is printed.
  void Clear();

  bool shown() const { return shown_; }
  // "commit  [######----------]  41 %  120.0 MiB of 290.0 MiB, 1.2 GiB/s"; `columns` wide at most.
  static std::string Line(const v1::Progress& progress, size_t columns);

 private:
  const int fd_;
  const bool shown_;
  bool drawn_ = false;
};

}  // namespace rekindle::cli
