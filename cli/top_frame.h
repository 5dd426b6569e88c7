// What `rekindle top` shows, laid out as lines of text. Pure: no clock, no terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct TopFigures {
  v1::ListJobsResponse jobs;
  uint64_t images = 0, stored_bytes = 0, logical_bytes = 0;  // the caller's, or all to an administrator
  std::optional<uint64_t> free_bytes;                        // of the store's file system
  std::string trouble;                                       // why this is not up to date; empty: it is
  int64_t now_unix_ns = 0;
  std::string time_of_day;  // the same, as people read it
};

// 0: no limit.
struct TopSize {
  size_t columns = 0, rows = 0;
};

struct TopLine {
  enum class Style { kPlain, kTitle, kTrouble };
  std::string text;  // no longer than there are columns
  Style style = Style::kPlain;
};

// Where there are too few columns, the less important ones of the jobs' table are left out; where there are
// too few rows, jobs and deaths.
std::vector<TopLine> LayOutTop(const TopFigures& figures, const TopSize& size);

// "1234/10000", "1234", "-".
std::string StepText(const v1::Job& job);
// Restarts, and how many are allowed: "2/10"; "-" of a job that is not supervised.
std::string RestartsText(const v1::Job& job);

// When an image of its name was last copied elsewhere, and a "!" where newer ones do not get there; "-": none
// was, or its images go nowhere.
std::string CopiedText(const v1::Job& job, int64_t now_unix_ns);
// Why newer ones do not get there, for each place.
std::vector<std::string> CopyTroubles(const v1::Job& job);

// Of a supervised job that has failed: why it was given up, what it could not be brought back from, its last
// deaths, newest first, and what was lost. Empty of any other.
std::vector<std::string> FailureLines(const v1::Job& job);

}  // namespace rekindle::cli
