#include "criu/restore_session.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/children.h"
#include "base/file.h"
#include "base/packet_socket.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "criu/failure.h"
#include "criu/image_files.h"
#include "criu/process_tree.h"
#include "criu/restore_conversation.h"
#include "criu/restore_preload.h"

namespace rekindle::criu {
namespace {

constexpr int kSocketInCriu = 3;

Timeline ReadStages(const RestoreOptions& options, const std::string& path, int64_t requested_ns,
                    const RestoreOutcome& outcome) {
  if (options.log_level < kLogLevelWithStages) return {};
  absl::StatusOr<std::string> log = ReadFile(path);
  return log.ok() ? RestoreStages(*log, requested_ns, outcome.stages) : Timeline();
}

// In a child that is to be CRIU.
void TakeOwnMounts(unsigned long propagation) {
  if (::unshare(CLONE_NEWNS) == 0 &&
      (propagation == 0 || ::mount("none", "/", nullptr, MS_REC | propagation, nullptr) == 0)) {
    return;
  }
  ::_exit(127);
}

class RestoreSession {
 public:
  RestoreSession(const RestoreOptions& options, const JobNamespaces& namespaces, RestoreObserver* observer,
                 int cancel_fd)
      : options_(options), namespaces_(namespaces), observer_(observer), cancel_fd_(cancel_fd) {}

  absl::StatusOr<RestoredTree> Run(const Installation& installation) {
    if (options_.log_file.empty() || absl::StrContains(options_.log_file, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("restoring from ", options_.images_directory,
                                                     ": the log's name \"", options_.log_file,
                                                     "\" must be a name without folders"));
    }
    RK_RETURN_IF_ERROR(OpenDirectories());
    RK_RETURN_IF_ERROR(Start(installation));
    RestoreConversation conversation(socket_.get(), criu_.pidfd(), cancel_fd_, MustBeBounded(options_),
                                     [this] { return DeadProcess(); });
    const int64_t requested_ns = MonotonicNanos();
    RK_RETURN_IF_ERROR(conversation.Send(request_));
    RestoreOutcome outcome = conversation.Run([this](pid_t inside) {
      absl::Status status = TasksReady(inside);
      // CRIU kills the tree at our word: its orphans must come to us.
      if (!status.ok()) subreaper_.emplace();
      return status;
    });
    if (outcome.status.ok()) {
      // It has nothing more to do than to exit.
      criu_.Wait().IgnoreError();
      return RestoredTree{root_, ReadStages(options_, log_path(), requested_ns, outcome)};
    }
    return CleanUp(outcome);
  }

 private:
  struct Made {
    pid_t in_image = 0, pid = 0;  // pid: in our numbers; 0: it had gone already
    uint64_t began = 0;           // ProcessStat::start_ticks; 0: it is not known to be the job's
  };

  const std::string& work_directory() const {
    return options_.work_directory.empty() ? options_.images_directory : options_.work_directory;
  }
  std::string log_path() const { return absl::StrCat(work_directory(), "/", options_.log_file); }

  absl::Status OpenDirectories() {
    RK_ASSIGN_OR_RETURN(images_fd_, OpenFile(options_.images_directory, O_RDONLY | O_DIRECTORY));
    RK_ASSIGN_OR_RETURN(work_fd_, OpenFile(work_directory(), O_RDONLY | O_DIRECTORY));
    return absl::OkStatus();
  }

  absl::Status Start(const Installation& installation) {
    RK_ASSIGN_OR_RETURN(auto ends, PacketSocketPair());
    socket_ = std::move(ends.first);
    const UniqueFd theirs = std::move(ends.second);

    request_ = RestoreRequest(options_);
    if (namespaces_.entered()) {
      // It can't look into a process that it does not see, and our folder has no name there.
      request_.mutable_options()->set_images_directory_fd(-1);
      request_.mutable_options()->set_images_directory(".");
    } else {
      request_.mutable_options()->set_images_directory_fd(images_fd_.get());
      request_.mutable_options()->set_work_directory_fd(work_fd_.get());
    }

    SubprocessOptions process;
    process.argv = FullCommand(installation, SwrkArguments(kSocketInCriu, options_.plugins));
    process.descriptors.emplace_back(theirs.get(), kSocketInCriu);
    // A terminal's Ctrl-C must reach CRIU only through us. And it puts a job without its session's leader
    // into its own session: in ours, a terminal that the job gets would be its controlling one, and to read
    // would stop it, since it is in the background there.
    process.new_session = true;
    // What it restores keeps its session keyring, whoever's processes they are.
    process.new_keyring = true;
    // CRIU gives a process the score of its image, unless that is 0: then it keeps CRIU's own.
    process.oom_score = 0;
    process.working_directory = work_directory();
    if (options_.user) {
      RK_RETURN_IF_ERROR(WriteBounds(absl::StrCat(work_directory(), "/", kBoundsFile), *options_.user,
                                     options_.placed_sockets));
    }
    RK_ASSIGN_OR_RETURN(std::vector<std::string> variables,
                        RestoreVariables(options_.user ? kBoundsFile : ""));
    variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
    process.environment = EnvironmentWith(variables);
    int next = kFirstInheritedInCriu;
    for (const auto& [descriptor, resource] : options_.inherit_fd) {
      process.descriptors.emplace_back(descriptor, next);
      pb::RpcInheritedDescriptor* inherited = request_.mutable_options()->add_inherited_fds();
      inherited->set_resource(resource);
      inherited->set_fd(next++);
    }
    // CRIU is not tied to our life by a signal: killed in the middle it would leave half-made tasks behind.
    // It sees the socket close instead and takes the tree down itself.
    if (options_.own_mounts) process.prepare = [kind = *options_.own_mounts] { TakeOwnMounts(kind); };
    // Within a container it takes one of the numbers there.
    if (namespaces_.entered()) process.number = NumberForCriu();
    RK_ASSIGN_OR_RETURN(criu_, namespaces_.Start(process));
    criu_start_ticks_ = StartTicks(criu_.pid()).value_or(0);
    return absl::OkStatus();
  }

  absl::Status TasksReady(pid_t inside) {
    root_ = inside;
    if (namespaces_.entered()) {
      RK_ASSIGN_OR_RETURN(root_, namespaces_.Outside(inside));
    }
    NoteProcesses();
    // CRIU has made it beside itself. From here on it may end with a status that somebody wants; before, it
    // is as good for whoever collects orphans.
    NoteChild(root_);
    return observer_ != nullptr ? observer_->TasksReady(root_) : absl::OkStatus();
  }

  // Leaves nothing of the tree and says what went wrong.
  absl::Status CleanUp(const RestoreOutcome& outcome) {
    if (!subreaper_.has_value()) subreaper_.emplace();
    ExitState exit;
    // With its children: those that it makes to learn about the kernel would wait for it without end.
    if (outcome.unanswered || (absl::IsCancelled(outcome.status) && !outcome.criu_failed))
      KillTree(criu_.pid(), /*reap_root=*/false);
    socket_.Reset();
    AwaitExit(criu_.pidfd());
    // CRIU kills its tasks when it fails, but a root made our child is left for us to reap, and a CRIU that
    // was killed itself leaves everything.
    std::vector<pid_t> image_pids = ImagePids();
    pid_t root = root_;
    if (root <= 0 && !namespaces_.entered()) root = outcome.root;
    // A noted one is not of this restore: it had the root's PID before.
    if (root <= 0 && !image_pids.empty() && !IsNotedChild(image_pids.front())) root = image_pids.front();
    KillOrphans(root);
    KillRestoredTree(root, image_pids, criu_start_ticks_);
    // One that somebody killed, as a machine without memory does, has ended none of its other children.
    KillRestOfSession(criu_.pid());
    if (absl::StatusOr<ExitState> waited = criu_.Wait(); waited.ok()) exit = *waited;
    if (!outcome.criu_failed) return outcome.status;
    absl::StatusOr<std::string> log = ReadFile(log_path());
    return FailureStatus(Operation::kRestore, exit, log.ok() ? *log : "", log_path());
  }

  // One that neither the image nor the container has.
  pid_t NumberForCriu() const {
    constexpr pid_t kFirst = 300;  // the kernel gives lower ones out once
    std::set<pid_t> taken;
    for (const auto& [theirs, ours] : namespaces_.AllNumbers()) taken.insert(theirs);
    for (const PstreeEntry& entry : Tree()) {
      taken.insert({entry.pid, entry.pgid, entry.sid});
      taken.insert(entry.threads.begin(), entry.threads.end());
    }
    pid_t number = kFirst;
    while (taken.contains(number)) ++number;
    return number;
  }

  std::vector<PstreeEntry> Tree() const {
    absl::StatusOr<std::string> content = ReadFile(absl::StrCat(options_.images_directory, "/pstree.img"));
    if (!content.ok()) return {};
    return ParsePstree(*content).value_or(std::vector<PstreeEntry>());
  }

  void NoteProcesses() {
    std::map<pid_t, pid_t> numbers;  // ours by theirs, where they have their own
    if (namespaces_.entered()) {
      for (const auto& [theirs, ours] : namespaces_.AllNumbers()) numbers[theirs] = ours;
    }
    // Whoever else has one of the numbers by now is none of the job.
    const std::vector<pid_t> tree = ProcessTree(root_, Zombies::kToo);
    for (const PstreeEntry& entry : Tree()) {
      const auto found = numbers.find(entry.pid);
      Made made{entry.pid, found == numbers.end() ? entry.pid : found->second};
      if (namespaces_.entered() && found == numbers.end()) made.pid = 0;
      const auto stat = ReadProcessStat(made.pid);
      if (stat.ok() && stat->start_ticks >= criu_start_ticks_ && absl::c_linear_search(tree, made.pid))
        made.began = stat->start_ticks;
      processes_.push_back(made);
    }
  }

  std::optional<pid_t> DeadProcess() const {
    for (const Made& made : processes_) {
      const absl::StatusOr<ProcessStat> stat =
          made.pid == 0 ? absl::NotFoundError("it had gone") : ReadProcessStat(made.pid);
      const bool is_known = made.began != 0;
      if (stat.ok() ? !is_known || (stat->start_ticks == made.began && !stat->ending())
                    : !absl::IsNotFound(stat.status()))
        continue;
      if (!HasEndedInImage(options_.images_directory, made.in_image)) return made.in_image;
    }
    return std::nullopt;
  }

  // Those below one that died before they were ours to inherit.
  void KillOrphans(pid_t root) const {
    const std::vector<pid_t> tree = ProcessTree(root, Zombies::kToo);
    for (const Made& made : processes_) {
      if (made.began == 0 || absl::c_linear_search(tree, made.pid)) continue;
      const absl::StatusOr<UniqueFd> process = OpenProcess(made.pid);
      const absl::StatusOr<ProcessStat> stat = ReadProcessStat(made.pid);
      if (process.ok() && stat.ok() && stat->start_ticks == made.began) KillAndAwaitExit(process->get());
    }
  }

  // The PIDs in the image, the root's first, of those processes that are there.
  std::vector<pid_t> ImagePids() const {
    std::vector<pid_t> pids;
    for (const PstreeEntry& entry : Tree()) {
      if (!namespaces_.entered()) {
        pids.push_back(entry.pid);
      } else if (auto pid = namespaces_.Outside(entry.pid); pid.ok()) {
        pids.push_back(*pid);
      }
    }
    return pids;
  }

  const RestoreOptions& options_;
  const JobNamespaces& namespaces_;
  RestoreObserver* const observer_;
  const int cancel_fd_;
  pb::RpcRequest request_;
  UniqueFd images_fd_, work_fd_, socket_;
  Subprocess criu_;
  uint64_t criu_start_ticks_ = 0;
  pid_t root_ = 0;                               // once all tasks are there
  std::vector<Made> processes_;                  // so are these
  std::optional<TemporarySubreaper> subreaper_;  // once it has failed
};

}  // namespace

absl::Status RunRestoreOver(const CriuConnection& criu, const RestoreOptions& options,
                            const std::function<absl::Status(pid_t root)>& tasks_ready, int cancel_fd,
                            RestoredTree* tree) {
  pb::RpcRequest request = RestoreRequest(options);
  request.mutable_options()->set_images_directory_fd(-1);
  request.mutable_options()->set_images_directory(options.images_directory);
  request.mutable_options()->set_work_directory_fd(criu.work_directory_fd);
  for (const auto& [fd, resource] : options.inherit_fd) {
    pb::RpcInheritedDescriptor* inherited = request.mutable_options()->add_inherited_fds();
    inherited->set_resource(resource);
    inherited->set_fd(fd);
  }
  RestoreConversation conversation(criu.socket, criu.pidfd, cancel_fd, MustBeBounded(options),
                                   criu.find_dead);
  const int64_t requested_ns = MonotonicNanos();
  RK_RETURN_IF_ERROR(conversation.Send(request));
  RestoreOutcome outcome = conversation.Run(tasks_ready);
  tree->root = outcome.root;
  if (outcome.status.ok()) tree->timeline = ReadStages(options, criu.log, requested_ns, outcome);
  if (outcome.status.ok() || !outcome.criu_failed) return outcome.status;
  absl::StatusOr<std::string> log = ReadFile(criu.log);
  ExitState exit;
  exit.code = 1;
  return FailureStatus(Operation::kRestore, exit, log.ok() ? *log : "", criu.log);
}

absl::StatusOr<RestoredTree> RunRestore(const Installation& criu, const RestoreOptions& options,
                                        const JobNamespaces& namespaces, RestoreObserver* observer,
                                        int cancel_fd) {
  return RestoreSession(options, namespaces, observer, cancel_fd).Run(criu);
}

}  // namespace rekindle::criu
