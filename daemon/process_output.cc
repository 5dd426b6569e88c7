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

absl::Status ProcessOutput::Follow() {
  return thread_.Start([this] { Read(); });
}

void ProcessOutput::Read() {
  char buffer[4096];
  for (;;) {
    const auto woken = thread_.Await(read_.get());
    if (!woken.ok() || *woken == StoppableThread::Woken::kStopped) break;
    const ssize_t n = ::read(read_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text_.append(buffer, static_cast<size_t>(n));
    if (text_.size() > 2 * most_) text_.erase(0, text_.size() - most_);
  }
  ended_.Notify();
}

std::string ProcessOutput::Text(absl::Duration patience) {
  if (thread_.running()) ended_.WaitFor(patience);
  thread_.Stop();
  return text_.size() > most_ ? text_.substr(text_.size() - most_) : text_;
}

}  // namespace rekindle::daemon
