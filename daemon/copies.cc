#include "daemon/copies.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/proto_conversion.h"
#include "restore/hook_message.h"

namespace rekindle::daemon {
namespace {

// A copy that does not answer within this time runs nevertheless.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);

// What stays of a running copy, given back when it has ended.
struct Running {
  std::unique_ptr<restore::Cgroup> group;
  UniqueFd channel, init;
  std::string directory, instance, kind;
  ~Running() { RemoveTree(directory).IgnoreError(); }

  ExitState End(int control) {
    restore::SandboxEnd end = restore::ReadEnd(control, directory);
    const restore::LimitEvents events = group ? group->Events() : restore::LimitEvents();
    if (restore::EndedByMemoryLimit(end.exit, events.out_of_memory_kills)) {
      end.why = absl::StrCat("its processes used up its memory limit of ",
                             FormatBytes(group->limits().memory_bytes), " (--memory)");
    } else if (events.out_of_memory_kills > 0) {
      Log(LogLevel::kWarning,
          absl::StrCat(kind, " ", instance, " was at its memory limit of ",
                       FormatBytes(group->limits().memory_bytes), " (--memory): the kernel ended ",
                       events.out_of_memory_kills, " of its processes, and not its first one"));
    }
    if (events.refused_processes > 0) {
      Log(LogLevel::kWarning,
          absl::StrCat(kind, " ", instance, " was at its limit of ", group->limits().processes,
                       " processes and threads (--processes): ", events.refused_processes,
                       " more were refused"));
    }
    if (!end.why.empty()) Log(LogLevel::kWarning, absl::StrCat(kind, " ", instance, " was ended: ", end.why));
    return end.exit;
  }
};

absl::Status EndedAgain() {
  return absl::CancelledError("cancelled; the copy that was just started was ended again");
}

bool IsReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return fd >= 0 && ::poll(&entry, 1, 0) > 0;
}

}  // namespace

absl::Status TellOrEnd(const v1::JobEvent& event, int init, const EventSink<v1::JobEvent>& send) {
  if (send(event)) return absl::OkStatus();
  SendSignal(init, SIGKILL);
  return EndedAgain();
}

bool WaitForAnswer(int channel, int cancel_fd) {
  for (;;) {
    auto text = restore::ReceiveMessage(channel, cancel_fd, kAnswerTimeout);
    if (!text.ok()) return false;
    if (restore::TextOf(restore::ParseMessage(*text), "type") == "up") return true;
  }
}

void CopyTimeline::Started(restore::CloneResult* copy) {
  if (!wanted_) return;
  started_ns_ = MonotonicNanos();
  timeline_ = std::move(copy->timeline);
  pager_ = std::move(copy->pager);
  copy->pager.reset();
  if (!timeline_.empty()) return;
  // A fork has phases alone, one after the other.
  int64_t at = begin_ns_;
  for (const auto& [name, seconds] : copy->phases) {
    Span span{"rekindle", "restore", name, at, static_cast<int64_t>(seconds * 1e9), {}};
    at = span.end_ns();
    timeline_.push_back(std::move(span));
  }
}

std::optional<v1::JobEvent> CopyTimeline::Finish(const v1::JobStarted& started) {
  if (!wanted_) return std::nullopt;
  if (started.ready_seconds() > 0) {
    timeline_.push_back(SpanSince(started_ns_, "rekindle", "restore", "answer"));
  }
  timeline_.push_back(SpanSince(begin_ns_, "rekindle", "restore", "restore"));
  if (pager_) {
    if (auto served = pager_->Timeline(); served.ok()) {
      timeline_.insert(timeline_.end(), std::make_move_iterator(served->begin()),
                       std::make_move_iterator(served->end()));
    } else {
      Log(LogLevel::kWarning,
          absl::StrCat("the pager's part of a timeline is missing: ", served.status().message()));
    }
    pager_.reset();
  }
  v1::JobEvent event;
  event.mutable_timeline()->set_pid(started.job().pid());
  event.mutable_timeline()->set_instance(started.instance());
  ToProto(timeline_, event.mutable_timeline()->mutable_spans());
  return event;
}

absl::StatusOr<RegisteredJob> RegisterCopy(Node& node, const Caller& caller, restore::CloneResult copy,
                                           const CopyDetails& details, const Stopwatch& watch, int cancel_fd,
                                           v1::JobStarted* started) {
  auto running = std::make_shared<Running>();
  running->directory = copy.sandbox.directory;
  running->instance = copy.sandbox.id;
  running->kind = details.kind;
  running->init = std::move(copy.sandbox.init);
  running->group = std::move(copy.group);
  running->channel = std::move(copy.channel);
  if (details.wait_for_answer && running->channel.valid() &&
      WaitForAnswer(running->channel.get(), cancel_fd)) {
    started->set_ready_seconds(watch.seconds());
  }
  // Whoever gave it up would not know that it runs.
  if (IsReadable(cancel_fd)) {
    restore::EndSandbox(running->init, running->directory);
    return EndedAgain();
  }
  JobRecord record;
  record.name = details.name;
  record.pid = copy.root;
  record.command = absl::StrCat(details.image, " (", details.kind, ")");
  record.owner = caller.uid;
  record.started_unix_ns = UnixNanos();
  record.image = details.image;
  record.log = details.log;
  record.mark = details.mark;
  record.instance = running->instance;
  const UniqueFd control(::fcntl(copy.sandbox.control.get(), F_DUPFD_CLOEXEC, 0));
  absl::StatusOr<RegisteredJob> job =
      control.valid() ? RegisterJob(node, std::move(record), /*unique_name=*/true, std::move(copy.sandbox.control),
                                    [running](int ended) { return running->End(ended); })
                      : ErrnoStatus(errno, "keeping a copy");
  if (!job.ok()) {
    restore::EndSandbox(running->init, running->directory);
    return job.status();
  }
  // From here on there is its record. Had this process died before, it would have ended.
  if (copy.sandbox.until_stay) restore::LetStay(control.get());
  ToProto(job->record, started->mutable_job());
  SetIdentity(node, job->record, started);
  started->set_seconds(copy.total_seconds);
  started->set_instance(running->instance);
  started->set_lazy_pages(copy.lazy_pages);
  started->set_prefilled_pages(copy.prefilled_pages);
  ToProto(copy.phases, started->mutable_phases());
  return job;
}

}  // namespace rekindle::daemon
