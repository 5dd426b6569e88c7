#include "cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/human_units.h"

namespace rekindle::cli {
namespace {

constexpr size_t kBarColumns = 24;
constexpr double kLeastSeconds = 0.05;  // a rate over less says nothing

// Of the terminal, which others write to meanwhile.
bool InBackground(int fd) {
  const pid_t foreground = ::tcgetpgrp(fd);  // -1: not our controlling terminal
  return foreground > 0 && foreground != ::getpgrp();
}

void TryToWrite(int fd, absl::string_view text) {
  [[maybe_unused]] ssize_t n = ::write(fd, text.data(), text.size());
}

}  // namespace

ProgressBar::ProgressBar(int fd, bool enabled) : fd_(fd), shown_(enabled && ::isatty(fd) == 1) {}

std::string ProgressBar::Line(const v1::Progress& progress, size_t columns) {
  std::string line = absl::StrFormat("%-9s", progress.phase());
  const uint64_t done = progress.bytes_done(), total = progress.bytes_total();
  if (total > 0) {
    double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    size_t filled = static_cast<size_t>(share * kBarColumns);
    absl::StrAppend(&line, " [", std::string(filled, '#'), std::string(kBarColumns - filled, '-'), "] ",
                    absl::StrFormat("%3.0f %%", share * 100), "  ", FormatBytes(done), " of ",
                    FormatBytes(total));
  } else if (done > 0) {
    absl::StrAppend(&line, " ", FormatBytes(done));
  }
  if (done > 0 && progress.phase_seconds() > kLeastSeconds) {
    double rate = static_cast<double>(done) / progress.phase_seconds();
    absl::StrAppend(&line, ", ", FormatBytes(static_cast<uint64_t>(rate)), "/s");
  }
  if (progress.devices_size() == 1) {
    absl::StrAppend(&line, "  ", progress.devices(0));
  } else if (progress.devices_size() > 1) {
    absl::StrAppend(&line, "  ", progress.devices_size(), " GPUs");
  }
  return line.substr(0, columns);
}

void ProgressBar::Update(const v1::Progress& progress) {
  if (!shown_ || InBackground(fd_)) return;
  winsize size{};
  size_t columns = ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
  TryToWrite(fd_, absl::StrCat("\r\x1b[K", Line(progress, columns)));
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (drawn_) TryToWrite(fd_, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace rekindle::cli
