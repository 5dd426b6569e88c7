#include "daemon/drain_notice.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/subprocess.h"

namespace rekindle::daemon {

DrainNotice::DrainNotice(std::string command, absl::Duration interval, std::function<void()> on_notice)
    : command_(std::move(command)), interval_(interval), on_notice_(std::move(on_notice)) {
  thread_ = std::thread(&DrainNotice::Loop, this);
}

DrainNotice::~DrainNotice() {
  stopping_ = true;
  wakeup_.Notify();
  thread_.join();
}

void DrainNotice::Loop() {
  constexpr absl::Duration kLongest = absl::Seconds(10);
  bool noticed = false;
  for (;;) {
    wakeup_.WaitFor(interval_);
    if (stopping_) return;
    absl::StatusOr<CommandResult> result = RunCommand({"/bin/sh", "-c", command_}, kLongest);
    if (!result.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("whether this machine goes is not known: ", result.status().message()));
      continue;
    }
    const bool goes = result->exit.ok();
    if (goes && !noticed) {
      Log(LogLevel::kWarning,
          absl::StrCat("this machine is about to go: ", absl::StripAsciiWhitespace(result->output)));
      on_notice_();
    }
    noticed = goes;
  }
}

}  // namespace rekindle::daemon
