#include "restore/template.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/opened_files.h"
#include "base/packet_socket.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "restore/hook_message.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

// Sandboxes made ahead of time: as many as start at the same moment without waiting for one.
constexpr size_t kReady = 6;
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
constexpr char kHasEnded[] = "the template has ended: put up a new one";
// The one that forks takes the number before the copy's.
constexpr pid_t kForkers = 1;
// A copy that has come to write more than this until it answers is left to do so itself.
constexpr uint64_t kMostTouchedBytes = uint64_t{128} << 20;
// Copies that ended before one could see all that they touched: no later one is waited for.
constexpr int kMostParts = 4;
constexpr char kNotSaid[] = "it does not say why";

// What it has open in a /tmp, /var/tmp or /dev/shm of its own; empty: nothing. A copy opens what the template
// has open, not what has that name for the copy. Libraries that are mapped don't matter: nobody writes them.
absl::StatusOr<std::string> OpenInItsOwn(pid_t process) {
  std::set<uint64_t> own;
  for (const char* folder : {"/tmp", "/dev/shm"}) {
    struct stat its, machines;
    if (::stat(absl::StrCat("/proc/", process, "/root", folder).c_str(), &its) != 0) continue;
    if (::stat(folder, &machines) != 0 || its.st_dev != machines.st_dev) own.insert(its.st_dev);
  }
  if (own.empty()) return std::string();
  RK_ASSIGN_OR_RETURN(const std::vector<OpenedFile> files,
                      FilesOpenedBy(process, OpenedFilesOf::kDescriptorsAndFolders));
  const auto found = std::find_if(files.begin(), files.end(), [&own](const OpenedFile& file) {
    return own.contains(file.identity.device);
  });
  return found == files.end() ? std::string() : found->name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Template>> Template::Take(CloneResult& started,
                                                         const std::string& runtime_directory,
                                                         size_t standby_size, int cancel_fd) {
  if (!started.channel.valid()) {
    return absl::FailedPreconditionError(
        "the image was not taken of a job that the runtime hook held, so nothing in it can fork copies: "
        "start the job "
        "with 'rekindle run --hold' and let it call ready() (docs/hook.md)");
  }
  RK_ASSIGN_OR_RETURN(std::string text, ReceiveMessage(started.channel.get(), cancel_fd, kAnswerTimeout));
  const Json message = ParseMessage(text);
  std::unique_ptr<Template> made(new Template());
  const std::string type = TextOf(message, "type");
  made->knows_waiting_ = NumberOf(message, "version", 1) >= 2;
  if (type == "refused") {
    made->refusal_ = TextOf(message, "why", kNotSaid);
  } else if (type != "up") {
    return absl::InternalError(absl::StrCat("the template's first message is '", type, "'"));
  }
  made->own_ = std::move(started.own);
  // Memory that is mapped its copies share with it.
  if (made->own_.files == nullptr) made->own_.temporary.shared_memory = 0;
  if (made->refusal_.empty()) {
    RK_ASSIGN_OR_RETURN(const std::string open, OpenInItsOwn(started.root));
    if (!open.empty()) {
      made->refusal_ =
          absl::StrCat(absl::CHexEscape(open),
                       " is open, and a copy would have the template's: close it before ready(), "
                       "open it again after the restore");
    }
  }
  made->pid_ = started.root_inside;
  made->process_.Reset(::fcntl(started.root_pidfd.get(), F_DUPFD_CLOEXEC, 0));
  made->directory_ = absl::StrCat(runtime_directory, "/s");
  {
    absl::MutexLock lock(&made->control_mutex_);
    made->control_ = std::move(started.more_control);
  }
  {
    absl::MutexLock lock(&made->channel_mutex_);
    made->channel_ = std::move(started.channel);
  }
  if (!made->refusal_.empty()) return made;
  if (standby_size > 0 && made->knows_waiting_) {
    auto make = [raw = made.get()](const StandbyKind& kind, int cancel, const StandbyPool::Park& park) {
      CloneOptions options;
      options.image = kind.image;
      options.network = kind.network;
      options.fill = kind.fill;
      options.cancel_fd = cancel;
      return raw->MakeCopy(options, kind.grouped, park);
    };
    made->standby_ = std::make_unique<StandbyPool>(std::move(make), standby_size);
  }
  made->thread_ = std::thread([raw = made.get()] { raw->Refill(); });
  return made;
}

Template::~Template() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
  standby_.reset();
}

absl::StatusOr<Sandbox> Template::MakeSandbox(Network network) {
  absl::StatusOr<Sandbox> made;
  {
    absl::MutexLock lock(&control_mutex_);
    made = MakeInside(control_.get(), directory_, network);
  }
  if (!made.ok()) return made.status();
  RK_RETURN_IF_ERROR(own_.MakeFolders(*made, "", {made->directory()}));
  RK_RETURN_IF_ERROR(own_.MakeFiles(*made));
  RK_RETURN_IF_ERROR(made->SetNextPid(pid_ - kForkers));
  return made;
}

absl::StatusOr<Sandbox> Template::TakeSandbox(Network network) {
  std::vector<Sandbox> dead;  // not destroyed under the lock
  if (network == Network::kHost) {
    absl::MutexLock lock(&mutex_);
    failing_ = false;
    while (!ready_.empty()) {
      Sandbox taken = std::move(ready_.front());
      ready_.pop_front();
      pollfd end{taken.init_pidfd(), POLLIN, 0};
      if (::poll(&end, 1, 0) == 0) return taken;
      dead.push_back(std::move(taken));
    }
  }
  return MakeSandbox(network);
}

uint64_t Template::FileBytes() const { return own_.files == nullptr ? 0 : own_.files->bytes_in_copy(); }

uint64_t Template::ready_bytes() const { return FileBytes() * kReady; }

bool Template::HasWork() const {
  return stop_ || answered_.has_value() || (!failing_ && ready_.size() < kReady);
}

void Template::Refill() {
  for (;;) {
    std::optional<Answered> answered;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Template::HasWork));
      if (stop_) return;
      answered.swap(answered_);
    }
    if (answered) {
      Learn(*answered);
      continue;
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

void Template::HasAnswered(const UniqueFd& root, const CloneOptions& options) {
  absl::MutexLock lock(&mutex_);
  if (learned_ || !knows_waiting_ || answered_) return;
  answered_ = Answered{UniqueFd(::fcntl(root.get(), F_DUPFD_CLOEXEC, 0)), options};
}

void Template::Learn(const Answered& copy) {
  TouchedPages touched;
  const absl::StatusOr<pid_t> pid = PidOf(copy.root.get());
  if (pid.ok()) touched = FindTouchedPages(*pid).value_or(TouchedPages());
  if (touched.ranges.empty()) touched.whole = false;  // it has ended
  absl::StatusOr<UniqueFd> list = MakeTouchList(touched);
  if (!list.ok()) Log(LogLevel::kWarning, std::string(list.status().message()));
  {
    absl::MutexLock lock(&mutex_);
    // What those that ended meanwhile have shown is better than nothing, until one shows all of it.
    learned_ = learned_ || touched.whole || ++parts_ >= kMostParts;
    if (touched.whole || touched.own_bytes > own_bytes_) {
      own_bytes_ = touched.own_bytes;
      touch_list_ = list.ok() && own_bytes_ <= kMostTouchedBytes
                        ? std::make_shared<const UniqueFd>(*std::move(list))
                        : nullptr;
    }
  }
  if (standby_ != nullptr) WantMore(copy.options);
}

void Template::WantMore(const CloneOptions& options) {
  absl::ReleasableMutexLock lock(&mutex_);
  const bool known = learned_ || own_bytes_ > 0;
  const uint64_t bytes = own_bytes_;
  lock.Release();
  // Those that stand by are to have their pages.
  if (known) standby_->Want(options, bytes + FileBytes());
}

absl::Status Template::AskToFork(const CloneOptions& options, const Sandbox& sandbox, int channel,
                                 const Cgroup* group, bool wait) {
  std::shared_ptr<const UniqueFd> touch_list;
  {
    absl::MutexLock lock(&mutex_);
    touch_list = touch_list_;
  }
  const Json request = {{"type", "fork"},       {"instance", sandbox.id()},
                        {"name", options.name}, {"environment", options.environment},
                        {"wait", wait},         {"touch", touch_list != nullptr}};
  RK_ASSIGN_OR_RETURN(const std::string text, MessageText(request));
  std::vector<int> descriptors = {sandbox.init_pidfd(), channel};
  if (group != nullptr) {
    for (int processes : group->processes()) descriptors.push_back(processes);
  }
  if (touch_list != nullptr) descriptors.push_back(touch_list->get());
  absl::MutexLock lock(&channel_mutex_);
  // While this waited for its turn.
  if (given_up_) return absl::UnavailableError(kHasEnded);
  absl::Status sent = SendPacket(channel_.get(), text, descriptors);
  if (!sent.ok()) return Annotate(sent, "asking the template for a copy");
  return AwaitForked();
}

absl::Status Template::AwaitForked() {
  const absl::Duration limit = patience_.Limit();
  Stopwatch watch;
  absl::StatusOr<std::string> text = ReceiveMessage(channel_.get(), -1, limit);
  if (absl::IsDeadlineExceeded(text.status())) {
    // An answer that still came would be taken for that to the next question. And as long as it stands
    // there, everybody would wait for it in turn.
    given_up_ = true;
    SendSignal(process_.get(), SIGKILL);
    const absl::Duration usual = patience_.usual();
    return absl::DeadlineExceededError(
        absl::StrCat("the template has not answered for ", absl::FormatDuration(limit),
                     usual > absl::ZeroDuration()
                         ? absl::StrCat(", and usually does within ",
                                        absl::FormatDuration(absl::Trunc(usual, absl::Microseconds(1))))
                         : std::string(),
                     ": it was given up and killed; what was forked from it goes on"));
  }
  RK_RETURN_IF_ERROR(text.status());
  patience_.Answered(absl::Seconds(watch.seconds()));
  const Json answer = ParseMessage(*text);
  if (TextOf(answer, "type") == "forked") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the template can't be forked: ", TextOf(answer, "why", kNotSaid)));
}

bool Template::lost() const { return given_up_ || AwaitExit(process_.get(), absl::ZeroDuration()); }

absl::Status Template::Personalize(const CloneOptions& options, Sandbox& sandbox, Cgroup* group) {
  if (group != nullptr) RK_RETURN_IF_ERROR(group->Set(options.limits));
  if (options.files_owner) RK_RETURN_IF_ERROR(own_.GiveFilesTo(*options.files_owner, sandbox));
  if (options.name.empty() && options.binds.empty() && options.temporary.bytes == 0 &&
      options.temporary.read_only.empty())
    return absl::OkStatus();
  return sandbox.Set(options.name, options.binds, options.temporary);
}

absl::Status Template::Wake(int channel, const Sandbox& sandbox, const CloneOptions& options) {
  const Json identity = {{"type", "go"},
                         {"instance", sandbox.id()},
                         {"name", options.name},
                         {"environment", options.environment}};
  RK_ASSIGN_OR_RETURN(const std::string text, MessageText(identity));
  return SendPacket(channel, text);
}

absl::StatusOr<CloneResult> Template::MakeCopy(const CloneOptions& options, bool grouped,
                                               const StandbyPool::Park& park) {
  Stopwatch total, phase;
  CloneResult result;
  std::unique_ptr<Cgroup> group;  // goes after the sandbox
  auto end_phase = [&](const char* name) {
    result.phases.emplace_back(name, phase.seconds());
    phase.Restart();
  };
  if (grouped) {
    RK_ASSIGN_OR_RETURN(group, Cgroup::Make());
    group->CountBeside(FileBytes());
  }
  RK_ASSIGN_OR_RETURN(Sandbox sandbox, TakeSandbox(options.network));
  if (!park) RK_RETURN_IF_ERROR(Personalize(options, sandbox, group.get()));
  RK_ASSIGN_OR_RETURN(auto channel, PacketSocketPair());
  end_phase("sandbox");
  const auto explain = [&group](const absl::Status& status) {
    if (group == nullptr) return status;
    return ExplainLimits(status, "forking a copy of the template (for which it needs one process more)",
                         group->limits(), group->Events());
  };
  RK_RETURN_IF_ERROR(explain(AskToFork(options, sandbox, channel.second.get(), group.get(), knows_waiting_)));
  channel.second.Reset();
  end_phase("fork");
  RK_ASSIGN_OR_RETURN(std::vector<UniqueFd> processes, sandbox.OpenProcesses({pid_}));
  result.root_pidfd = std::move(processes[0]);
  RK_ASSIGN_OR_RETURN(result.root, PidOf(result.root_pidfd.get()));
  RK_RETURN_IF_ERROR(sandbox.Watch(pid_));
  // Until somebody sees how it ends, and until it is wanted. The hook may be too old for that.
  if (knows_waiting_) {
    const absl::StatusOr<std::string> text =
        ReceiveMessage(channel.first.get(), options.cancel_fd, kAnswerTimeout);
    RK_RETURN_IF_ERROR(explain(text.status()));
    if (TextOf(ParseMessage(*text), "type") != "waiting") {
      return absl::InternalError(absl::StrCat("a copy that was to wait says ", *text));
    }
  }
  end_phase("watch");
  CloneOptions wanted = options;
  if (park) {
    RK_ASSIGN_OR_RETURN(wanted, park());
    result.phases.clear();
    total.Restart();
    phase.Restart();
    RK_RETURN_IF_ERROR(Personalize(wanted, sandbox, group.get()));
  }
  if (knows_waiting_) RK_RETURN_IF_ERROR(Wake(channel.first.get(), sandbox, wanted));
  if (park) end_phase("standby");
  result.root_inside = pid_;
  result.channel = std::move(channel.first);
  result.group = std::move(group);
  result.sandbox = sandbox.Release();
  result.total_seconds = total.seconds();
  return result;
}

absl::StatusOr<CloneResult> Template::Fork(const CloneOptions& options) {
  if (!refusal_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the template can't be forked: ", refusal_));
  }
  if (given_up_) return absl::UnavailableError(kHasEnded);
  absl::StatusOr<CloneResult> result;
  std::optional<absl::StatusOr<CloneResult>> waiting;
  // Who wants a timeline wants to see it made.
  const bool may_wait = standby_ != nullptr && !options.timeline;
  if (may_wait) waiting = standby_->Claim(options);
  result = waiting ? *std::move(waiting) : MakeCopy(options, options.limits.any(), nullptr);
  if (may_wait && result.ok()) WantMore(options);
  return result;
}

}  // namespace rekindle::restore
