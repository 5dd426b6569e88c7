#include "daemon/process_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::daemon {

absl::StatusOr<std::unique_ptr<ProcessOutput>> ProcessOutput::Make(size_t most) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  std::unique_ptr<ProcessOutput> output(new ProcessOutput(most));
  output->read_.Reset(ends[0]);
  output->write_.Reset(ends[1]);
  output->stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!output->stop_.valid()) return ErrnoStatus(errno, "making an eventfd");
  return output;
}

ProcessOutput::~ProcessOutput() { Stop(); }

absl::Status ProcessOutput::Follow() {
  return CatchNoMoreThreads([this] {
    thread_ = std::thread([this] { Read(); });
    return absl::OkStatus();
  });
}

void ProcessOutput::Read() {
  char buffer[4096];
  for (;;) {
    pollfd entries[2] = {{read_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) break;
    if (entries[1].revents != 0) break;
    if (entries[0].revents == 0) continue;
    const ssize_t n = ::read(read_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text_.append(buffer, static_cast<size_t>(n));
    if (text_.size() > 2 * most_) text_.erase(0, text_.size() - most_);
  }
  ended_.Notify();
}

void ProcessOutput::Stop() {
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::string ProcessOutput::Text(absl::Duration patience) {
  if (thread_.joinable()) ended_.WaitFor(patience);
  Stop();
  return text_.size() > most_ ? text_.substr(text_.size() - most_) : text_;
}

}  // namespace rekindle::daemon
