#include "daemon/process_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.h"

namespace rekindle::daemon {

absl::StatusOr<std::unique_ptr<ProcessOutput>> ProcessOutput::Make(size_t most) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  std::unique_ptr<ProcessOutput> output(new ProcessOutput(most));
  output->read_.Reset(ends[0]);
  output->write_.Reset(ends[1]);
  return output;
}

ProcessOutput::~ProcessOutput() {
  if (thread_.joinable()) thread_.join();
}

void ProcessOutput::Follow() {
  thread_ = std::thread([this] {
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(read_.get(), buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR)) {
      if (n <= 0) continue;
      text_.append(buffer, static_cast<size_t>(n));
      if (text_.size() > 2 * most_) text_.erase(0, text_.size() - most_);
    }
  });
}

std::string ProcessOutput::Text() {
  if (thread_.joinable()) thread_.join();
  return text_.size() > most_ ? text_.substr(text_.size() - most_) : text_;
}

}  // namespace rekindle::daemon
