// Copies of images in sandboxes, clones and forks of templates alike, as jobs of this node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/timeline.h"
#include "daemon/node.h"
#include "daemon/rpc_support.h"
#include "rekindle/v1/rekindle.pb.h"
#include "restore/clone.h"

namespace rekindle::daemon {

struct CopyDetails {
  std::string name;  // empty: made from the image's
  std::string image, log;
  std::string mark;  // as JobRecord's
  std::string kind;  // "clone", "template"
  bool wait_for_answer = true;
};

// Waits until the copy answers on its control channel, if it has one, and makes it a job: its sandbox's
// folder and cgroup go when it has ended. `watch` runs since the request. On failure the copy is ended.
absl::StatusOr<RegisteredJob> RegisterCopy(Node& node, const Caller& caller, restore::CloneResult copy,
                                           const CopyDetails& details, const Stopwatch& watch, int cancel_fd,
                                           v1::JobStarted* started);

// The timeline of one copy, where one is wanted; without effect where not.
class CopyTimeline {
 public:
  explicit CopyTimeline(bool wanted) : wanted_(wanted), begin_ns_(MonotonicNanos()) {}

  // Takes what is known from `copy`, before RegisterCopy has it.
  void Started(restore::CloneResult* copy);
  // The copy is a job, and has answered if it ever does. Nothing where no timeline is wanted.
  std::optional<v1::JobEvent> Finish(const v1::JobStarted& started);

 private:
  const bool wanted_;
  const int64_t begin_ns_;
  int64_t started_ns_ = 0;
  Timeline timeline_;
  std::optional<restore::PagerClient> pager_;
};

// Sends what tells of a copy. Where nobody takes it (Cancelled) the copy is ended, by its sandbox's first
// process `init` (a pidfd): nobody would know that it runs.
absl::Status TellOrEnd(const v1::JobEvent& event, int init, const EventSink<v1::JobEvent>& send);

// Waits for a job's first own message on its control channel. False: it has ended, or did not answer in time.
bool WaitForAnswer(int channel, int cancel_fd);

// clone_rpc.cc
restore::CloneOptions CloneOptionsFrom(const v1::CloneOptions& request, const store::ImageInfo& info);
// Of a v1::RestoreRequest or a v1::StartFromTemplateRequest; `number`: of one of several, 0 where it is
// alone.
template <typename Request>
restore::CloneOptions OptionsOfCopy(const Node& node, const Caller& caller, const Request& request,
                                    const store::ImageInfo& info, uint32_t number, int cancel_fd) {
  restore::CloneOptions options = CloneOptionsFrom(request.clone(), info);
  options.timeline = request.timeline();
  options.name = request.name();
  if (!options.name.empty() && number > 0) absl::StrAppend(&options.name, "-", number);
  options.cancel_fd = cancel_fd;
  options.caller = node.policy().IsAdmin(caller) ? 0 : caller.uid;
  return options;
}
// Where it has answered, its working set is what it has touched until then; else what it touches in a time.
void EndRecordingOf(Node& node, store::Store& store, const v1::JobStarted& clone);
absl::Status CheckCloneOptions(const Node& node, const Caller& caller, const v1::CloneOptions& clone);

}  // namespace rekindle::daemon
