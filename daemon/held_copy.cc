#include "daemon/held_copy.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status.h"
#include "daemon/instance_record.h"
#include "daemon/process_info.h"
#include "restore/hook_message.h"
#include "restore/pager_client.h"

namespace rekindle::daemon {
namespace {

// So often it is looked whether the daemon is ending.
constexpr absl::Duration kLookIfEnding = absl::Milliseconds(100);
// One whose channel has ended is ending, which on a busy machine takes a while; or it has closed that itself,
// and runs.
constexpr absl::Duration kLastWords = absl::Seconds(30);

bool IsGivenUp(const Node& node, const ReadyWait& wait) {
  return node.stopping() || (wait.cancel && wait.cancel->cancelled());
}

// Nothing where it does not end.
restore::SandboxEnd EndOf(const Node& node, const restore::CloneResult& copy, const ReadyWait& wait) {
  const Deadline deadline(kLastWords);
  const int slice_ms = static_cast<int>(absl::ToInt64Milliseconds(kLookIfEnding));
  pollfd control{copy.sandbox.control.get(), POLLIN, 0};
  while (::poll(&control, 1, slice_ms) <= 0) {
    if (deadline.passed() || IsGivenUp(node, wait)) return {};
  }
  return restore::ReadEnd(copy.sandbox.control.get(), copy.sandbox.directory);
}

// It says that it is about to park, and has parked when the channel ends. What it says else does not give it
// more time. Returns whether it has after-restore callbacks; an older hook does not say. `has_ended`: before
// that.
absl::StatusOr<bool> WaitUntilParked(const Node& node, int channel, const ReadyWait& wait,
                                     const std::string& what, bool* has_ended) {
  const Deadline deadline(wait.longest);
  bool parks = false, has_after_restore = true;
  for (;;) {
    if (IsGivenUp(node, wait)) {
      return absl::CancelledError(absl::StrCat(what, ": nobody wants it any more"));
    }
    const absl::Duration left = deadline.left();
    auto message =
        restore::ReceiveMessage(channel, wait.cancel ? wait.cancel->fd() : -1, std::min(left, kLookIfEnding));
    if (absl::IsUnavailable(message.status())) {
      if (parks) return has_after_restore;
      *has_ended = true;
      return absl::FailedPreconditionError(absl::StrCat(what, ": it ended before it was ready"));
    }
    if (absl::IsDeadlineExceeded(message.status()) && left > kLookIfEnding) continue;
    if (left == absl::ZeroDuration() || absl::IsDeadlineExceeded(message.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": it was not ready within ", absl::FormatDuration(wait.longest),
          parks ? ": it said that it was, and did not stop" : ": what it loads must take less time"));
    }
    RK_RETURN_IF_ERROR(Annotate(message.status(), what));
    const nlohmann::json said = restore::ParseMessage(*message);
    if (restore::TextOf(said, "type") != "ready") continue;
    parks = true;
    has_after_restore = restore::NumberOf(said, "after_restore", 1) != 0;
  }
}

}  // namespace

absl::StatusOr<CapturedCopy> CaptureNextReadyPoint(
    Node& node, store::Store& store, restore::CloneOptions copy, ckpt::CaptureOptions capture,
    const ReadyWait& wait, const std::string& what,
    const std::function<void(const CapturedCopy&, std::map<std::string, std::string>& labels)>& label) {
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.CriuIfAny());
  Stopwatch watch;
  if (wait.cancel) copy.cancel_fd = wait.cancel->fd();
  RK_ASSIGN_OR_RETURN(restore::CloneResult started, node.clones().Start(store, criu, copy));
  struct Ender {
    restore::CloneResult& copy;
    ~Ender() { restore::EndSandbox(copy.sandbox.init, copy.sandbox.directory); }
  } ender{started};
  // Parked it would wait for ever for a daemon that was killed.
  const std::string records = InstanceRecords(node.options().runtime_directory, node.options().store);
  RK_RETURN_IF_ERROR(MakeDirectories(records, 0711));
  const InstanceRecord record(absl::StrCat(records, "/", started.sandbox.id, ".pid"), started.root,
                              started.group.get());
  bool has_ended = false;
  const absl::StatusOr<bool> has_after_restore =
      WaitUntilParked(node, started.channel.get(), wait, what, &has_ended);
  if (absl::IsFailedPrecondition(has_after_restore.status())) {
    const restore::SandboxEnd end = has_ended ? EndOf(node, started, wait) : restore::SandboxEnd();
    if (end.damaged) return restore::DamageOf(end, what);
    absl::Status why = has_after_restore.status();
    if (started.group != nullptr)
      why = restore::ExplainLimits(why, what, started.group->limits(), started.group->Events());
    // Whichever limit it was, it is no reason to try again at once.
    if (!absl::IsFailedPrecondition(why)) return absl::FailedPreconditionError(why.message());
    if (end.exit.signal == SIGKILL) {
      return absl::UnavailableError(absl::StrCat(
          what,
          ": it was killed before it was ready, which the kernel does when the machine's memory is short",
          end.why.empty() ? "" : ": ", end.why));
    }
    if (!end.exit.ok())
      return absl::FailedPreconditionError(absl::StrCat(why.message(), " (", end.exit.ToString(), ")"));
  }
  RK_RETURN_IF_ERROR(has_after_restore.status());
  if (wait.check) RK_RETURN_IF_ERROR(wait.check(started.root, *has_after_restore));
  CapturedCopy captured;
  captured.seconds = watch.seconds();
  if (auto pager = node.clones().ConnectToPager(store); pager.ok()) {
    if (wait.cancel != nullptr) pager->CancelBy(wait.cancel->fd());
    RK_ASSIGN_OR_RETURN(const bool complete, pager->Fill(started.sandbox.id));
    // Another time it may be: this is no reason to give the image up for good.
    if (!complete) return absl::UnavailableError(absl::StrCat(what, ": its memory could not be brought in"));
  }
  captured.resident_bytes = MeasureTree(started.root).resident_bytes;
  if (label) label(captured, capture.labels);
  capture.pid = started.root;
  capture.stop = true;
  capture.replace = true;
  capture.replace_others = true;  // the name is ours
  capture.runtime_directory = node.options().runtime_directory;
  capture.spill_directory = node.options().store;
  auto result = ckpt::Capture(store, criu, nullptr, capture, nullptr,
                              wait.cancel ? &wait.cancel->cancelled() : nullptr);
  RK_RETURN_IF_ERROR(Annotate(result.status(), what));
  captured.image = std::move(result->image);
  return captured;
}

}  // namespace rekindle::daemon
