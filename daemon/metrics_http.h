// Answers GET /metrics over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// Thread-safe. Whoever reaches the address may read: it gives numbers, and the names of jobs and functions.
class MetricsHttp {
 public:
  // Listens until it is destroyed. `text` makes the answers, on a thread of this object's own.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(UniqueFd listener,
                                                            std::function<std::string()> text);
  virtual ~MetricsHttp() = default;
};

}  // namespace rekindle::daemon
