// The way of its job on which an image lies, as its labels say. Pure; parsed once, for who compares many.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/job_descent.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

class JobWay {
 public:
  explicit JobWay(const v1::Image& image);

  // Nothing: each went its own way, or the labels don't tell.
  std::optional<bool> IsLaterThan(const JobWay& other) const;
  // Is this the one to go on from: is it later, or was the other one known here when a start that this has
  // come from went another way? Nothing: nobody has chosen.
  std::optional<bool> CountsBefore(const JobWay& other) const;
  // Have both come from one start, each its own way, and nobody has chosen? Neither shows the other's work
  // then, whatever the clocks say.
  bool WentAnotherWayThan(const JobWay& other) const;

  // Empty, nothing: not known.
  const std::string& start() const { return start_; }
  std::optional<uint64_t> number() const { return number_; }
  // The starts that it has come from, each up to what lies in its past.
  const StartsBefore& before() const { return before_; }
  // Those of other ways that were known to who chose it, each up to the last of them.
  const StartsBefore& seen() const { return seen_; }

 private:
  bool LiesIn(const StartsBefore& starts) const;

  std::string start_;
  std::optional<uint64_t> number_;
  StartsBefore before_, seen_;
};

}  // namespace rekindle::cli
