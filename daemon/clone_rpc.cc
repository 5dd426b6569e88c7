// Restore with --clone: any number of copies of an image, each in a sandbox of its own.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/cpu_limit.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/status.h"
#include "daemon/call_monitor.h"
#include "daemon/copies.h"
#include "daemon/job_mark.h"
#include "daemon/job_room.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "restore/clone.h"

namespace rekindle::daemon {
namespace {

constexpr uint32_t kMostClonesAtOnce = 10000;
constexpr uint64_t kLeastMemoryOfCopy = uint64_t{512} << 10;

}  // namespace

restore::CloneOptions CloneOptionsFrom(const v1::CloneOptions& request, const store::ImageInfo& info) {
  restore::CloneOptions options;
  options.image = info.digest;
  switch (request.network()) {
    case v1::CloneOptions::NONE:
      options.network = restore::Network::kNone;
      break;
    case v1::CloneOptions::OWN:
      options.network = restore::Network::kOwn;
      break;
    default:
      options.network = restore::Network::kHost;
  }
  switch (request.fill()) {
    case v1::CloneOptions::NEVER:
      options.fill = restore::Fill::kNever;
      break;
    case v1::CloneOptions::EAGER:
      options.fill = restore::Fill::kEager;
      break;
    default:
      options.fill = restore::Fill::kIdle;
  }
  options.limits = {request.memory_bytes(), request.cpus(), request.max_processes()};
  for (const auto& [name, value] : request.environment()) options.environment[name] = value;
  for (const v1::Bind& bind : request.binds()) options.binds.emplace_back(bind.from(), bind.to());
  if (request.record_ms() > 0) options.record = absl::Milliseconds(request.record_ms());
  return options;
}

void EndRecordingOf(Node& node, store::Store& store, const v1::JobStarted& clone) {
  if (clone.ready_seconds() <= 0) return;
  auto pager = node.clones().ConnectToPager(store);
  if (pager.ok()) pager->Ready(clone.instance()).IgnoreError();
}

namespace {

class CloneCall {
 public:
  CloneCall(Node& node, const Call& call, const v1::RestoreRequest& request, store::Store& store,
            const store::ImageInfo& info, const criu::Installation& criu, const EventSink<v1::JobEvent>& send)
      : node_(node), call_(call), request_(request), store_(store), info_(info), criu_(criu), send_(send) {}

  absl::StatusOr<RegisteredJob> StartOne(uint32_t number, int cancel_fd) {
    Stopwatch watch;
    CopyTimeline timeline(request_.timeline());
    restore::CloneOptions options = OptionsOfCopy(node_, call_.caller, request_, info_, number, cancel_fd);
    const std::string& log = request_.log();
    std::vector<UniqueFd> stdio;
    if (!log.empty()) {
      RK_ASSIGN_OR_RETURN(UniqueFd null, OpenFile("/dev/null", O_RDWR));
      stdio.push_back(std::move(null));
      RK_ASSIGN_OR_RETURN(UniqueFd output, OpenFileAs(Node::UserOf(call_.caller), log,
                                                      O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, 0600));
      stdio.push_back(std::move(output));
      options.log = true;
    } else if (!request_.detach() && request_.stdio_fds_size() > 0) {
      RK_ASSIGN_OR_RETURN(stdio, TakeStdio(call_.caller, request_));
    }
    for (const UniqueFd& fd : stdio) options.stdio.push_back(fd.get());
    if (options.stdio.size() == 2) options.stdio.push_back(options.stdio[1]);
    RK_ASSIGN_OR_RETURN(restore::CloneResult clone, node_.clones().Start(store_, criu_, options));
    timeline.Started(&clone);
    const pid_t root = clone.root;
    const bool has_hook = clone.channel.valid();
    const UniqueFd init(::fcntl(clone.sandbox.init.get(), F_DUPFD_CLOEXEC, 0));
    CopyDetails details;
    details.name = options.name;
    details.image = info_.reference;
    details.log = log;
    details.mark = MarkOfImage(info_.labels);
    details.kind = "clone";
    v1::JobEvent event;
    RK_ASSIGN_OR_RETURN(RegisteredJob job, RegisterCopy(node_, call_.caller, std::move(clone), details, watch,
                                                        cancel_fd, event.mutable_started()));
    WarnOfEnvironment(request_.clone(), has_hook, event.mutable_started());
    EndRecordingOf(node_, store_, event.started());
    event.mutable_started()->set_number(number);
    const std::optional<v1::JobEvent> followed = timeline.Finish(event.started());
    {
      absl::MutexLock lock(&mutex_);
      RK_RETURN_IF_ERROR(TellOrEnd(event, init.get(), send_));
      if (followed) send_(*followed);
    }
    // With binds its files are not those of the next.
    if (event.started().ready_seconds() > 0 && request_.clone().binds_size() == 0) {
      // Without a daemon ours is open for reading alone.
      node_.clones().RecordTouchedFiles(store_, info_, root,
                                        [this] { return node_.OpenStore(Node::Access::kWrite); });
    }
    return job;
  }

 private:
  Node& node_;
  const Call& call_;
  const v1::RestoreRequest& request_;
  store::Store& store_;
  const store::ImageInfo& info_;
  const criu::Installation& criu_;
  absl::Mutex mutex_;
  const EventSink<v1::JobEvent>& send_;
};

}  // namespace

absl::Status CheckCloneOptions(const Node& node, const Caller& caller, const v1::CloneOptions& clone) {
  if (clone.count() > kMostClonesAtOnce) {
    return absl::InvalidArgumentError(
        absl::StrCat(clone.count(), " copies at once are too many: at most ", kMostClonesAtOnce));
  }
  if (!IsCpuLimit(clone.cpus())) {
    return absl::InvalidArgumentError(absl::StrCat("a copy can't be limited to ", clone.cpus(),
                                                   " processors: from ", kLeastCpus, " to ", kMostCpus,
                                                   ", or 0 for no limit"));
  }
  if (clone.memory_bytes() > 0 && clone.memory_bytes() < kLeastMemoryOfCopy) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a copy can't be limited to ", FormatBytes(clone.memory_bytes()),
        " of memory (--memory): no program runs in "
        "less than ",
        FormatBytes(kLeastMemoryOfCopy), "; write 512M for 512 MiB, or leave it out for no limit"));
  }
  for (const auto& [name, value] : clone.environment()) {
    if (!name.empty() && !absl::StrContains(name, '=')) continue;
    return absl::InvalidArgumentError(absl::StrCat("'", name,
                                                   "' in environment of the request is no name for a "
                                                   "variable: give one that is not empty and has no '='"));
  }
  // Over /etc, say, a bind could deceive a set-uid program of the copy.
  if (clone.binds_size() > 0 && !node.policy().IsAdmin(caller)) {
    return absl::PermissionDeniedError("--bind is for administrators: see 'rekindled --help', --group");
  }
  for (const v1::Bind& bind : clone.binds()) {
    RK_RETURN_IF_ERROR(CheckAbsolute(bind.from(), "the bind's source"));
    RK_RETURN_IF_ERROR(CheckAbsolute(bind.to(), "the bind's target"));
  }
  return absl::OkStatus();
}

void WarnOfEnvironment(const v1::CloneOptions& clone, bool has_hook, v1::JobStarted* started) {
  if (has_hook || clone.environment().empty()) return;
  started->add_warnings(
      "the copy was not told its environment, which takes a job with the runtime hook: in this image none "
      "waits for it");
}

absl::Status RestoreClones(Node& node, const Call& call, const v1::RestoreRequest& request,
                           store::Store& store, const store::ImageInfo& info, const criu::Installation& criu,
                           const EventSink<v1::JobEvent>& send) {
  RK_RETURN_IF_ERROR(CheckCloneOptions(node, call.caller, request.clone()));
  if (!request.pidfile().empty() || request.tcp_close() || request.gpu_map_size() > 0 ||
      request.ignore_mismatch()) {
    return absl::InvalidArgumentError(
        "a clone has no pidfile (its PID is in the answer), no TCP connections and no GPU: leave these "
        "options "
        "out");
  }
  if (!request.log().empty()) RK_RETURN_IF_ERROR(CheckAbsolute(request.log(), "the log"));
  CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  CloneCall clones(node, call, request, store, info, criu, send);
  const uint32_t count = std::max<uint32_t>(request.clone().count(), 1);
  RK_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<void>> rooms, TakeRoomForJobs(node, call.caller, count));
  const size_t threads = std::min<size_t>(count, std::max(2u, std::thread::hardware_concurrency()));
  std::vector<RegisteredJob> jobs(count);
  std::atomic<uint32_t> next{0};
  absl::Mutex mutex;
  absl::Status first_error;
  auto work = [&] {
    for (uint32_t i; (i = next.fetch_add(1)) < count;) {
      auto job = clones.StartOne(count > 1 ? i + 1 : 0, monitor.cancel_fd());
      rooms[i].reset();
      node.counts().clones.Add(job.status());
      if (job.ok()) {
        jobs[i] = *std::move(job);
        continue;
      }
      absl::MutexLock lock(&mutex);
      first_error.Update(job.status());
      next = count;
    }
  };
  InParallel(threads, [&](size_t) { work(); });
  rooms.clear();
  monitor.Stop();
  // Nobody comes after this command.
  if (!node.options().daemon) node.clones().ForgetImages();
  // Unavailable would mean that this service could not be reached.
  if (absl::IsUnavailable(first_error)) return absl::AbortedError(first_error.message());
  RK_RETURN_IF_ERROR(first_error);
  if (request.detach()) return absl::OkStatus();
  return SendJobEnds(node, call, jobs, send);
}

}  // namespace rekindle::daemon
