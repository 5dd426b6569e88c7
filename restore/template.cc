#include "restore/template.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

// Sandboxes made ahead of time: as many as start at the same moment without waiting for one.
constexpr size_t kReady = 6;
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
// The one that forks takes the number before the copy's.
constexpr pid_t kForkers = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<Template>> Template::Take(CloneResult& started,
                                                         const std::string& runtime_directory,
                                                         int cancel_fd) {
  if (!started.channel.valid()) {
    return absl::FailedPreconditionError(
        "the image was not taken of a job that the runtime hook held, so nothing in it can fork copies: "
        "start the job "
        "with 'rekindle run --hold' and let it call ready() (docs/hook.md)");
  }
  RK_ASSIGN_OR_RETURN(std::string text, ReceiveMessage(started.channel.get(), cancel_fd, kAnswerTimeout));
  const Json message = Json::parse(text, nullptr, false);
  if (!message.is_object()) return absl::InternalError("the template's first message makes no sense");
  std::unique_ptr<Template> made(new Template());
  const std::string type = message.value("type", "");
  if (type == "refused") {
    made->refusal_ = message.value("why", std::string("it does not say why"));
  } else if (type != "up") {
    return absl::InternalError(absl::StrCat("the template's first message is '", type, "'"));
  }
  made->pid_ = started.root_inside;
  made->directory_ = absl::StrCat(runtime_directory, "/s");
  {
    absl::MutexLock lock(&made->control_mutex_);
    made->control_ = std::move(started.more_control);
  }
  {
    absl::MutexLock lock(&made->channel_mutex_);
    made->channel_ = std::move(started.channel);
  }
  if (made->refusal_.empty()) made->thread_ = std::thread([raw = made.get()] { raw->Refill(); });
  return made;
}

Template::~Template() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<Sandbox> Template::MakeSandbox(Network network) {
  absl::StatusOr<Sandbox> made;
  {
    absl::MutexLock lock(&control_mutex_);
    made = MakeInside(control_.get(), directory_, network);
  }
  if (!made.ok()) return made.status();
  RK_RETURN_IF_ERROR(made->SetNextPid(pid_ - kForkers));
  return made;
}

absl::StatusOr<Sandbox> Template::TakeSandbox(Network network) {
  if (network == Network::kHost) {
    absl::MutexLock lock(&mutex_);
    failing_ = false;
    if (!ready_.empty()) {
      Sandbox taken = std::move(ready_.front());
      ready_.pop_front();
      return taken;
    }
  }
  return MakeSandbox(network);
}

bool Template::HasWork() const { return stop_ || (!failing_ && ready_.size() < kReady); }

void Template::Refill() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Template::HasWork));
      if (stop_) return;
    }
    absl::StatusOr<Sandbox> made = MakeSandbox(Network::kHost);
    absl::MutexLock lock(&mutex_);
    if (made.ok()) {
      ready_.push_back(*std::move(made));
    } else {
      // Whoever asks next tries again, and is told why.
      failing_ = true;
      Log(LogLevel::kWarning, absl::StrCat("making a template's sandbox: ", made.status().message()));
    }
  }
}

absl::Status Template::AskToFork(const CloneOptions& options, const Sandbox& sandbox, int channel,
                                 const Cgroup* group) {
  const Json request = {{"type", "fork"},
                        {"instance", sandbox.id()},
                        {"name", options.name},
                        {"environment", options.environment}};
  std::vector<int> descriptors = {sandbox.init_pidfd(), channel};
  if (group != nullptr) {
    for (int processes : group->processes()) descriptors.push_back(processes);
  }
  absl::MutexLock lock(&channel_mutex_);
  absl::Status sent =
      SendPacket(channel_.get(), request.dump(-1, ' ', false, Json::error_handler_t::replace), descriptors);
  if (!sent.ok()) return Annotate(sent, "asking the template for a copy");
  RK_ASSIGN_OR_RETURN(std::string text, ReceiveMessage(channel_.get(), -1, kAnswerTimeout));
  const Json answer = Json::parse(text, nullptr, false);
  if (answer.is_object() && answer.value("type", "") == "forked") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the template can't be forked: ",
                   answer.is_object() ? answer.value("why", std::string("it does not say why")) : text));
}

absl::StatusOr<CloneResult> Template::Fork(const CloneOptions& options) {
  if (!refusal_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the template can't be forked: ", refusal_));
  }
  Stopwatch total, phase;
  CloneResult result;
  std::unique_ptr<Cgroup> group;  // goes after the sandbox
  if (options.limits.any()) {
    RK_ASSIGN_OR_RETURN(group, Cgroup::Make());
    RK_RETURN_IF_ERROR(group->Set(options.limits));
  }
  RK_ASSIGN_OR_RETURN(Sandbox sandbox, TakeSandbox(options.network));
  if (!options.name.empty() || !options.binds.empty()) {
    RK_RETURN_IF_ERROR(sandbox.Set(options.name, options.binds));
  }
  RK_ASSIGN_OR_RETURN(auto channel, PacketSocketPair());
  result.phases.emplace_back("sandbox", phase.seconds());
  phase.Restart();
  absl::Status forked = AskToFork(options, sandbox, channel.second.get(), group.get());
  if (group != nullptr) {
    forked = ExplainLimits(forked, "forking a copy of the template (for which it needs one process more)",
                           group->limits(), group->Events());
  }
  RK_RETURN_IF_ERROR(forked);
  channel.second.Reset();
  result.phases.emplace_back("fork", phase.seconds());
  phase.Restart();
  RK_ASSIGN_OR_RETURN(std::vector<UniqueFd> processes, sandbox.OpenProcesses({pid_}));
  result.root_pidfd = std::move(processes[0]);
  RK_ASSIGN_OR_RETURN(result.root, PidOf(result.root_pidfd.get()));
  RK_RETURN_IF_ERROR(sandbox.Watch(pid_));
  result.phases.emplace_back("watch", phase.seconds());
  result.root_inside = pid_;
  result.channel = std::move(channel.first);
  result.group = std::move(group);
  result.sandbox = sandbox.Release();
  result.total_seconds = total.seconds();
  return result;
}

}  // namespace rekindle::restore
