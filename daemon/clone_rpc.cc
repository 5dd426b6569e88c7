// Restore with --clone: any number of copies of an image, each in a sandbox of its own.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "daemon/call_monitor.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "restore/clone.h"

namespace rekindle::daemon {
namespace {

constexpr uint32_t kMostClonesAtOnce = 10000;
// A copy that does not answer within this time runs nevertheless.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);

restore::CloneOptions OptionsFrom(const v1::CloneOptions& request, const store::ImageInfo& info) {
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
      options.fill = "never";
      break;
    case v1::CloneOptions::EAGER:
      options.fill = "eager";
      break;
    default:
      options.fill = "idle";
  }
  options.limits = {request.memory_bytes(), request.cpus(), request.max_processes()};
  for (const auto& [name, value] : request.environment()) options.environment[name] = value;
  for (const v1::Bind& bind : request.binds()) options.binds.emplace_back(bind.from(), bind.to());
  if (request.record_ms() > 0) options.record = absl::Milliseconds(request.record_ms());
  return options;
}

// Waits for the job's first own message. False: it has ended, or did not answer in time.
bool WaitForAnswer(int channel, int cancel_fd) {
  const absl::Time deadline = absl::Now() + kAnswerTimeout;
  for (;;) {
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    pollfd entries[2] = {{channel, POLLIN, 0}, {cancel_fd, POLLIN, 0}};
    const int n = ::poll(entries, 2, static_cast<int>(std::max<int64_t>(left_ms, 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || entries[0].revents == 0) return false;
    auto packet = ReceivePacket(channel);
    if (!packet.ok() || !packet->has_value()) return false;
    const nlohmann::json message = nlohmann::json::parse((*packet)->bytes, nullptr, false);
    if (message.is_object() && message.value("type", "") == "up") return true;
  }
}

// What stays of a running copy, given back when it has ended.
struct Running {
  std::unique_ptr<restore::Cgroup> group;
  UniqueFd channel, init;
  std::string directory;
  ~Running() { RemoveTree(directory).IgnoreError(); }
};

class CloneCall {
 public:
  CloneCall(Node& node, const Call& call, const v1::RestoreRequest& request, store::Store& store,
            const store::ImageInfo& info, const criu::Installation& criu, const EventSink<v1::JobEvent>& send)
      : node_(node), call_(call), request_(request), store_(store), info_(info), criu_(criu), send_(send) {}

  absl::StatusOr<RegisteredJob> StartOne(uint32_t number, int cancel_fd) {
    Stopwatch watch;
    restore::CloneOptions options = OptionsFrom(request_.clone(), info_);
    options.cancel_fd = cancel_fd;
    options.name = request_.name();
    if (!options.name.empty() && number > 0) absl::StrAppend(&options.name, "-", number);
    JobRecord record;
    std::vector<UniqueFd> stdio;
    if (!request_.log().empty()) {
      record.log = request_.log();
      RK_ASSIGN_OR_RETURN(UniqueFd null, OpenFile("/dev/null", O_RDWR));
      stdio.push_back(std::move(null));
      RK_ASSIGN_OR_RETURN(UniqueFd output, OpenFileAs(Node::UserOf(call_.caller), record.log,
                                                      O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, 0600));
      stdio.push_back(std::move(output));
    } else if (!request_.detach() && request_.stdio_fds_size() > 0) {
      RK_ASSIGN_OR_RETURN(stdio, TakeStdio(call_.caller, request_));
    }
    for (const UniqueFd& fd : stdio) options.stdio.push_back(fd.get());
    if (options.stdio.size() == 2) options.stdio.push_back(options.stdio[1]);
    RK_ASSIGN_OR_RETURN(restore::CloneResult clone, node_.clones().Start(store_, criu_, options));
    auto running = std::make_shared<Running>();
    running->directory = clone.sandbox.directory;
    running->init = std::move(clone.sandbox.init);
    running->group = std::move(clone.group);
    double ready_seconds = 0;
    if (clone.channel.valid() && WaitForAnswer(clone.channel.get(), cancel_fd)) {
      ready_seconds = watch.seconds();
      auto pager = node_.clones().ConnectToPager(store_);
      if (pager.ok()) pager->Ready(clone.sandbox.id).IgnoreError();
    }
    running->channel = std::move(clone.channel);

    record.name = options.name;
    record.pid = clone.root;
    record.command = absl::StrCat(info_.reference, " (clone)");
    record.owner = call_.caller.uid;
    record.started_unix_ns = UnixNanos();
    record.image = info_.reference;
    const std::string instance = clone.sandbox.id;
    RK_ASSIGN_OR_RETURN(RegisteredJob job,
                        RegisterJob(node_, std::move(record), /*unique_name=*/true,
                                    std::move(clone.sandbox.control), [running, instance](int control) {
                                      restore::SandboxEnd end = restore::ReadEnd(control, running->directory);
                                      if (running->group && running->group->OutOfMemoryKills() > 0) {
                                        end.why = "its processes used up its memory limit";
                                      }
                                      if (!end.why.empty()) {
                                        Log(LogLevel::kWarning,
                                            absl::StrCat("clone ", instance, " was ended: ", end.why));
                                      }
                                      return end.exit;
                                    }));
    v1::JobEvent event;
    v1::JobStarted* started = event.mutable_started();
    ToProto(job.record, started->mutable_job());
    started->set_seconds(clone.total_seconds);
    started->set_ready_seconds(ready_seconds);
    started->set_instance(instance);
    started->set_lazy_pages(clone.lazy_pages);
    started->set_prefilled_pages(clone.prefilled_pages);
    ToProto(clone.phases, started->mutable_phases());
    absl::MutexLock lock(&mutex_);
    send_(event);
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

absl::Status CheckRequest(const v1::RestoreRequest& request) {
  if (request.clone().count() > kMostClonesAtOnce) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.clone().count(), " clones at once are too many: at most ", kMostClonesAtOnce));
  }
  if (!request.pidfile().empty() || request.tcp_close() || request.gpu_map_size() > 0 ||
      request.ignore_mismatch()) {
    return absl::InvalidArgumentError(
        "a clone has no pidfile (its PID is in the answer), no TCP connections and no GPU: leave these "
        "options out");
  }
  for (const v1::Bind& bind : request.clone().binds()) {
    RK_RETURN_IF_ERROR(CheckAbsolute(bind.from(), "the bind's source"));
    RK_RETURN_IF_ERROR(CheckAbsolute(bind.to(), "the bind's target"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreClones(Node& node, const Call& call, const v1::RestoreRequest& request,
                           store::Store& store, const store::ImageInfo& info, const criu::Installation& criu,
                           const EventSink<v1::JobEvent>& send) {
  RK_RETURN_IF_ERROR(CheckRequest(request));
  CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  CloneCall clones(node, call, request, store, info, criu, send);
  const uint32_t count = std::max<uint32_t>(request.clone().count(), 1);
  const size_t threads = std::min<size_t>(count, std::max(2u, std::thread::hardware_concurrency()));
  std::vector<RegisteredJob> jobs(count);
  std::atomic<uint32_t> next{0};
  absl::Mutex mutex;
  absl::Status first_error;
  auto work = [&] {
    for (uint32_t i; (i = next.fetch_add(1)) < count;) {
      auto job = clones.StartOne(count > 1 ? i + 1 : 0, monitor.cancel_fd());
      if (job.ok()) {
        jobs[i] = *std::move(job);
        continue;
      }
      absl::MutexLock lock(&mutex);
      first_error.Update(job.status());
      next = count;
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  monitor.Stop();
  RK_RETURN_IF_ERROR(first_error);
  if (request.detach()) return absl::OkStatus();
  absl::Status status;
  for (const RegisteredJob& job : jobs) status.Update(SendJobEnd(node, call, *job.end, send));
  return status;
}

}  // namespace rekindle::daemon
