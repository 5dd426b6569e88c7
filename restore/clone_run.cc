#include "restore/clone_run.h"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "criu/restore_log.h"
#include "criu/restore_preload.h"
#include "criu/restore_session.h"
#include "proto/rekindle/v1/job_file.h"
#include "rekindle/v1/image_layout.h"
#include "restore/hook_message.h"
#include "restore/job_logs.h"
#include "restore/opened_files_check.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

constexpr absl::Duration kLongestAnswer = absl::Seconds(30);
constexpr absl::Duration kUsualRecording = absl::Seconds(1);
// Of a sandbox that is being taken down.
constexpr absl::Duration kLastWords = absl::Milliseconds(200);

// That the image has of any process or thread.
pid_t HighestNumber(const std::vector<criu::PstreeEntry>& tree) {
  pid_t highest = 0;
  for (const criu::PstreeEntry& task : tree) {
    highest = std::max({highest, task.pid, task.pgid, task.sid});
    for (const pid_t thread : task.threads) highest = std::max(highest, thread);
  }
  return highest;
}

}  // namespace

absl::Status CloneRun::TakeSandbox(SandboxPool& pool) {
  std::vector<std::pair<int, int>> more;
  std::set<std::string> replaced;
  int next = kFirstFreeInCriu, nulls = 0, channels = 0;
  auto give = [&](int number, const std::string& resource) { inherited_.emplace_back(number, resource); };
  static_assert(kNullsInCriu >= 3, "one for each of descriptors 0, 1 and 2");
  for (const v1::StdioSlot& slot : image_.manifest.stdio()) {
    const std::string resource =
        options_.log && IsReplacedByLog(slot) ? ResourceOfFile(slot) : slot.resource();
    if (resource.empty() || !replaced.insert(resource).second) continue;
    if (options_.stdio.size() != 3) {
      give(kNullInCriu + nulls++, resource);
      continue;
    }
    more.emplace_back(options_.stdio[static_cast<size_t>(slot.fd())], next);
    give(next++, resource);
  }
  for (const std::string& resource : image_.manifest.control_sockets()) {
    if (channels < kChannelsInCriu) give(kChannelInCriu + channels++, resource);
  }
  auto ready = more.empty() ? pool.Take(kind_) : pool.MakeWith(kind_, more);
  if (!ready.ok()) return ready.status();
  const bool made_ahead = ready->made_ahead;
  group_ = std::move(ready->group);
  // It is we who make these, and so charged to us.
  if (group_ != nullptr) {
    const uint64_t files = image_.temporary == nullptr ? 0 : image_.temporary->bytes_in_copy();
    group_->CountBeside(files + image_.shared_memory->bytes());
  }
  sandbox_ = std::move(ready->sandbox);
  criu_process_ = std::move(ready->criu);
  listener_ = std::move(ready->listener);
  if (!image_.manifest.control_sockets().empty()) result_.channel = std::move(ready->channel);
  EndPhase("sandbox", {{"made_ahead", made_ahead ? 1 : 0},
                       {"descriptors_of_the_caller", static_cast<int64_t>(more.size())}});
  return absl::OkStatus();
}

absl::Status CloneRun::LimitMemory() {
  if (group_ == nullptr) return absl::OkStatus();
  CgroupLimits memory;
  memory.memory_bytes = options_.limits.memory_bytes;
  return Annotate(group_->Set(memory), What());
}

absl::Status CloneRun::Explain(absl::Status failure) {
  if (absl::IsCancelled(failure)) return failure;
  const SandboxEnd end = in_our_hands_ ? SandboxEnd() : sandbox_.EndWithin(kLastWords);
  if (end.damaged) return DamageOf(end, What());
  if (!end.why.empty()) failure = absl::AbortedError(absl::StrCat(What(), ": ", end.why));
  // Its sandbox may have been ended for that before it could say so.
  if (end.why.empty() && pager_.HasEnded())
    failure = absl::AbortedError(
        absl::StrCat("the pager, which serves its missing memory, has died: ", failure.message()));
  if (group_ == nullptr) return failure;
  return ExplainLimits(failure, What(), group_->limits(), group_->Events());
}

absl::Status CloneRun::Personalize() {
  if (result_.channel.valid()) RK_RETURN_IF_ERROR(SayHello());
  if (options_.limits.any()) RK_RETURN_IF_ERROR(Annotate(group_->Set(options_.limits), What()));
  const OwnPlaces& own = result_.own;
  // One that has not stood by has them since the start.
  const auto resizes = [](uint64_t wanted, uint64_t present) { return wanted > 0 && wanted != present; };
  const bool resized = resizes(options_.temporary.bytes, own.temporary.bytes) ||
                       resizes(options_.temporary.shared_memory, own.temporary.shared_memory);
  const bool closes = options_.temporary.read_only != own.temporary.read_only;
  if (options_.name != host_name_ || resized || closes)
    RK_RETURN_IF_ERROR(sandbox_.Set(options_.name, {}, options_.temporary));
  if (options_.files_owner) {
    RK_RETURN_IF_ERROR(Annotate(own.GiveFilesTo(*options_.files_owner, sandbox_), What()));
  }
  // Its path is in the copy's memory, and the job that is there may still run. Not before CRIU has opened
  // what the image has open.
  if (image_.info.labels.contains(v1::kJobMarkLabel)) {
    RK_RETURN_IF_ERROR(sandbox_.Hide(absl::StrCat(runtime_directory_, "/" REKINDLE_JOB_FILE_FOLDER)));
  }
  return absl::OkStatus();
}

absl::Status CloneRun::AttachPager() {
  UniqueFd keeper = sandbox_.TakeKeeper();
  PagerClient::AttachOptions attach;
  attach.clone = sandbox_.id();
  attach.image = options_.image;
  attach.fill = options_.fill;
  attach.until_answer = image_.listens && !result_.channel.valid();
  attach.record = options_.record.value_or(attach.until_answer ? kLongestAnswer : kUsualRecording);
  // Who has the hook says when it is ready, however long that takes.
  attach.until_ready = result_.channel.valid();
  if (attach.until_ready) attach.record = std::max(attach.record, kLongestAnswer);
  attach.timeline = options_.timeline;
  UniqueFd group;
  if (group_ != nullptr) {
    RK_ASSIGN_OR_RETURN(group, OpenFile(group_->memory_folder(), O_RDONLY | O_DIRECTORY));
  }
  RK_ASSIGN_OR_RETURN(result_.lazy_pages, pager_.Attach(attach, listener_.get(), keeper.get(), group.get()));
  EndPhase("attach");
  return absl::OkStatus();
}

absl::Status CloneRun::MakeOwnPlaces() {
  OwnPlaces& own = result_.own;
  own.files = image_.temporary;
  own.temporary = options_.temporary;
  if (own.temporary.bytes == 0 && own.files != nullptr) own.temporary.bytes = kMostTemporary;
  // As long as nobody has said how much it may have there: what its image has may be much.
  if (own.temporary.shared_memory == 0 && (own.files != nullptr || !image_.shared_memory->empty()))
    own.temporary.shared_memory = kKernelsShare;
  for (const std::string& folder : kept_) {
    std::vector<std::string>& keep = own.temporary.keep;
    if (std::find(keep.begin(), keep.end(), folder) == keep.end()) keep.push_back(folder);
  }
  if (!own.any()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(
      own.MakeFolders(sandbox_, options_.name, {image_.directory->path(), sandbox_.directory()}));
  host_name_ = options_.name;
  RK_RETURN_IF_ERROR(image_.shared_memory->MakeIn(Root()));
  RK_RETURN_IF_ERROR(own.MakeFiles(sandbox_));
  EndPhase("own folders");
  return absl::OkStatus();
}

absl::Status CloneRun::Bind() {
  if (options_.binds.empty()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(sandbox_.Set("", options_.binds, OwnTemporary()));
  EndPhase("binds");
  return absl::OkStatus();
}

absl::Status CloneRun::MakeSocketFolders() {
  auto made = SocketFolders::Make(image_.manifest, Root(), image_.user, SocketFolders::Names::kOfCopies);
  if (!made.ok()) return Annotate(made.status(), What());
  socket_folders_ = *std::move(made);
  if (!socket_folders_.empty()) EndPhase("socket folders");
  return absl::OkStatus();
}

absl::Status CloneRun::RunCriu(const StandbyPool::Park& park) {
  criu::CriuConnection connection;
  connection.socket = criu_process_.rpc.get();
  connection.pidfd = criu_process_.pidfd.get();
  connection.work_directory_fd = kInitDirectory;
  connection.log = CriuLog();
  connection.find_dead = [this] { return DeadProcess(); };
  const v1::JobManifest& manifest = image_.manifest;
  criu::RestoreOptions options;
  options.images_directory = image_.directory->path();
  options.lazy_pages = true;
  options.shell_job = manifest.shell_job();
  options.tcp_close = manifest.tcp_established() || manifest.tcp_close();  // the connection is not the copy's
  options.file_locks = manifest.file_locks();
  options.external_unix_sockets = manifest.external_unix_sockets();
  options.user = image_.user;
  options.inherit_fd = inherited_;
  if (options_.timeline) options.log_level = criu::kLogLevelWithStages;
  double prefill_seconds = 0;
  criu::RestoredTree tree;
  if (image_.user) {
    RK_RETURN_IF_ERROR(criu::WriteBounds(
        absl::StrCat(sandbox_.directory(), "/", criu::kBoundsFile), *image_.user,
        {manifest.placed_sockets().begin(), manifest.placed_sockets().end()}, result_.own.folders()));
  }
  in_our_hands_ = false;
  criu_began_unix_ns_ = UnixNanos();
  RK_RETURN_IF_ERROR(criu::RunRestoreOver(
      connection, options,
      [&](pid_t) -> absl::Status {
        in_our_hands_ = true;
        Stopwatch watch;
        const int64_t begin = MonotonicNanos();
        std::vector<pid_t> pids;
        for (const criu::PstreeEntry& task : image_.directory->tree()) pids.push_back(task.pid);
        RK_ASSIGN_OR_RETURN(std::vector<UniqueFd> processes, sandbox_.OpenProcesses(pids));
        // What the copy starts would get the lowest numbers that are free, and have them in its image: those
        // that CRIU itself has where that is restored. Where they can't be chosen, that may happen.
        sandbox_.SetNextPid(HighestNumber(image_.directory->tree()) + 1).IgnoreError();
        absl::Status opened;
        absl::StatusOr<PagerClient::Prefilled> prefilled = absl::UnknownError("");
        // Neither waits for the other, and nothing runs before both have ended.
        InParallel(image_.user ? 2 : 1, [&](size_t part) {
          if (part == 0) prefilled = pager_.Prefill(sandbox_.id(), pids, processes);
          if (part == 1) opened = CheckOpened(processes);
        });
        if (!opened.ok()) return opened;
        if (!prefilled.ok()) return prefilled.status();
        image_.shared_memory->RemoveNameless(Root());
        if (!options_.stdio.empty()) {
          absl::Status appended = AppendToLogs(processes[0].get(), image_.manifest);
          if (!appended.ok()) return appended;
        }
        result_.prefilled_pages = prefilled->pages;
        // It may have ended by the time that anybody could look for it.
        RK_ASSIGN_OR_RETURN(result_.root, PidOf(processes[0].get()));
        result_.root_pidfd = std::move(processes[0]);
        result_.working_set_bytes = prefilled->settled_bytes;
        prefill_seconds = watch.seconds();
        AddSpan("working set", begin, {{"pages", static_cast<int64_t>(prefilled->pages)}});
        if (park) {
          RK_ASSIGN_OR_RETURN(options_, park());
          pager_.CancelBy(options_.cancel_fd);
          result_.phases.clear();
          total_.Restart();
          phase_.Restart();
          prefill_seconds = 0;
        }
        others_.assign(std::make_move_iterator(processes.begin() + 1),
                       std::make_move_iterator(processes.end()));
        absl::Status personalized = Personalize();
        in_our_hands_ = !personalized.ok();
        return personalized;
      },
      options_.cancel_fd, &tree));
  root_ = tree.root;
  AddSpan("criu", phase_begin_ns_);
  std::move(tree.timeline.begin(), tree.timeline.end(), std::back_inserter(result_.timeline));
  result_.phases.emplace_back(park ? "standby" : "criu", phase_.seconds() - prefill_seconds);
  if (!park) result_.phases.emplace_back("working set", prefill_seconds);
  phase_.Restart();
  phase_begin_ns_ = MonotonicNanos();
  return absl::OkStatus();
}

absl::Status CloneRun::CheckOpened(const std::vector<UniqueFd>& processes) const {
  if (!image_.user) return absl::OkStatus();
  OpenedFilesCheck check{image_.manifest, *image_.user,        {},        Root(),
                         options_.stdio,  criu_began_unix_ns_, CriuLog(), result_.own.folders()};
  for (const UniqueFd& process : processes) {
    RK_ASSIGN_OR_RETURN(const pid_t pid, PidOf(process.get()));
    check.processes.push_back(pid);
  }
  return Annotate(CheckOpenedFiles(check), What());
}

std::optional<pid_t> CloneRun::DeadProcess() const {
  if (!result_.root_pidfd.valid()) return std::nullopt;
  const auto has_ended = [](const UniqueFd& process) {
    const absl::StatusOr<pid_t> pid = PidOf(process.get());
    if (!pid.ok()) return absl::IsNotFound(pid.status());
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(*pid);
    return stat.ok() ? stat->ending() : absl::IsNotFound(stat.status());
  };
  const std::vector<criu::PstreeEntry>& tree = image_.directory->tree();
  for (size_t i = 0; i <= others_.size(); ++i) {
    if (has_ended(i == 0 ? result_.root_pidfd : others_[i - 1]) &&
        !criu::HasEndedInImage(image_.directory->path(), tree[i].pid))
      return tree[i].pid;
  }
  return std::nullopt;
}

absl::StatusOr<CloneResult> CloneRun::Finish() {
  RK_RETURN_IF_ERROR(sandbox_.Watch(root_));
  result_.root_inside = root_;
  if (options_.template_instance) {
    RK_ASSIGN_OR_RETURN(result_.more_control, sandbox_.AnotherControl());
  }
  EndPhase("watch");
  socket_folders_.Keep();
  result_.sandbox = sandbox_.Release();
  result_.group = std::move(group_);
  result_.total_seconds = total_.seconds();
  pager_.CancelBy(-1);
  if (options_.timeline) result_.pager.emplace(std::move(pager_));
  return std::move(result_);
}

absl::Status CloneRun::SayHello() {
  const nlohmann::json hello = {{"type", "restored"},
                                {"instance", sandbox_.id()},
                                {"name", options_.name},
                                {"environment", options_.environment},
                                {"template", options_.template_instance}};
  absl::StatusOr<std::string> text = MessageText(hello);
  if (!text.ok()) return Annotate(text.status(), What());
  return SendPacket(result_.channel.get(), *text);
}

void CloneRun::EndPhase(const char* name, std::map<std::string, int64_t> numbers) {
  result_.phases.emplace_back(name, phase_.seconds());
  AddSpan(name, phase_begin_ns_, std::move(numbers));
  phase_.Restart();
  phase_begin_ns_ = MonotonicNanos();
}

void CloneRun::AddSpan(const char* name, int64_t begin_ns, std::map<std::string, int64_t> numbers) {
  if (!options_.timeline) return;
  result_.timeline.push_back(SpanSince(begin_ns, "rekindle", "restore", name, std::move(numbers)));
}

std::string CloneRun::Root() const { return absl::StrCat("/proc/", sandbox_.init_pid(), "/root"); }

std::string CloneRun::CriuLog() const {
  return absl::StrCat(sandbox_.directory(), "/", criu::RestoreOptions().log_file);
}

std::string CloneRun::What() const { return absl::StrCat("restoring a copy of ", image_.info.reference); }

}  // namespace rekindle::restore
