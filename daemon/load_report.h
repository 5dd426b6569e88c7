// What a function tells while it is loaded for its image: to a Runtime API, why it can't be; and what it
// writes. Neither of the two stays with the image.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"
#include "daemon/process_output.h"
#include "functions/http_threads.h"
#include "functions/runtime_api.h"

namespace rekindle::daemon {

// A listening Unix socket that its owner alone can connect to (and root).
absl::StatusOr<UniqueFd> ListenForOwner(const std::string& path, const Owner& owner);

// Owned by one thread at a time.
class LoadReport {
 public:
  // `socket`: the Runtime API's, which `owner` is to reach; it goes with this. `threads` outlive it.
  static absl::StatusOr<std::unique_ptr<LoadReport>> Start(functions::HttpThreads& threads,
                                                           std::string socket, const Owner& owner);
  ~LoadReport();

  const std::string& socket() const { return socket_; }
  // For the function's descriptors 0, 1 and 2; not to be closed.
  std::vector<int> stdio() const { return {nothing_.get(), written_.get(), written_.get()}; }

  struct Told {
    std::string error;    // "KeyError: 'TABLE'"; empty: it has told none
    std::string written;  // the end of it
  };
  // Once it has ended. What it has left running is not waited for longer than a few seconds.
  Told End();

 private:
  class Observer;
  LoadReport() = default;
  std::string socket_;
  UniqueFd nothing_, written_;
  std::unique_ptr<ProcessOutput> output_;
  std::shared_ptr<Observer> observer_;
  std::unique_ptr<functions::RuntimeApi> api_;
};

}  // namespace rekindle::daemon
