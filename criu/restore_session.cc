#include "criu/restore_session.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "criu/failure.h"
#include "criu/image_files.h"
#include "criu/images.pb.h"
#include "criu/process_tree.h"

namespace rekindle::criu {
namespace {

// Values of CRIU's RPC.
constexpr int kTypeRestore = 2;
constexpr int kTypeNotify = 6;
constexpr int kCgroupModeIgnore = 0;
constexpr absl::string_view kTasksReadyStage = "post-restore";

constexpr int kSocketInCriu = 3;
constexpr int kFirstInheritedInCriu = 16;
constexpr size_t kMaxMessageBytes = 1 << 20;

// How the conversation ended.
struct Outcome {
  absl::Status status;       // OK: CRIU reported success
  bool criu_failed = false;  // the log says why
  pid_t root = 0;            // as far as known
};

absl::StatusOr<UniqueFd> MakeConfigFile(const std::vector<std::string>& arguments) {
  UniqueFd file(::memfd_create("rekindle-criu.conf", MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "making CRIU's configuration");
  std::string content;
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "--")) {
      absl::StrAppend(&content, content.empty() ? "" : "\n", argument.substr(2));
    } else {
      absl::StrAppend(&content, " ", argument);
    }
  }
  content += "\n";
  RK_RETURN_IF_ERROR(WriteFully(file.get(), content.data(), content.size(), "CRIU's configuration"));
  return file;
}

class RestoreSession {
 public:
  RestoreSession(const RestoreOptions& options, RestoreObserver* observer, int cancel_fd)
      : options_(options), observer_(observer), cancel_fd_(cancel_fd) {}

  absl::StatusOr<RestoredTree> Run(const Installation& installation) {
    if (options_.log_file.empty() || absl::StrContains(options_.log_file, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("restoring from ", options_.images_directory,
                                                     ": the log's name \"", options_.log_file,
                                                     "\" must be a name without folders"));
    }
    RK_RETURN_IF_ERROR(OpenDirectories());
    RK_RETURN_IF_ERROR(Start(installation));
    Outcome outcome = Converse();
    if (outcome.status.ok()) {
      // It has nothing more to do than to exit.
      criu_.Wait().IgnoreError();
      return RestoredTree{outcome.root};
    }
    return CleanUp(outcome);
  }

 private:
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
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      return ErrnoStatus(errno, "making a socket for CRIU");
    }
    socket_.Reset(pair[0]);
    UniqueFd theirs(pair[1]);

    pb::RpcRequest request;
    request.set_type(kTypeRestore);
    FillOptions(request.mutable_options());
    if (!options_.extra.empty()) {
      RK_ASSIGN_OR_RETURN(config_, MakeConfigFile(options_.extra));
      request.mutable_options()->set_config_file(absl::StrCat("/proc/", ::getpid(), "/fd/", config_.get()));
    }

    SubprocessOptions process;
    process.argv = FullCommand(installation, {"--no-default-config", "swrk", absl::StrCat(kSocketInCriu)});
    process.descriptors.emplace_back(theirs.get(), kSocketInCriu);
    int next = kFirstInheritedInCriu;
    for (const auto& [descriptor, resource] : options_.inherit_fd) {
      process.descriptors.emplace_back(descriptor, next);
      pb::RpcInheritedDescriptor* inherited = request.mutable_options()->add_inherited_fds();
      inherited->set_resource(resource);
      inherited->set_fd(next++);
    }
    // CRIU is not tied to our life by a signal: killed in the middle it would leave half-made tasks behind.
    // It sees the socket close instead and takes the tree down itself.
    RK_ASSIGN_OR_RETURN(criu_, Subprocess::Start(process));
    criu_start_ticks_ = StartTicks(criu_.pid()).value_or(0);
    return Send(request);
  }

  void FillOptions(pb::RpcOptions* rpc) const {
    rpc->set_images_directory_fd(images_fd_.get());
    rpc->set_work_directory_fd(work_fd_.get());
    rpc->set_log_file(options_.log_file);
    rpc->set_log_level(2);  // as in command_line.cc
    rpc->set_notify(true);
    rpc->set_restore_sibling(true);
    rpc->set_cgroup_mode(kCgroupModeIgnore);
    rpc->set_evasive_devices(true);
    rpc->set_shell_job(options_.shell_job);
    rpc->set_tcp_established(options_.tcp_established);
    rpc->set_tcp_close(options_.tcp_close);
    rpc->set_file_locks(options_.file_locks);
    rpc->set_external_unix_sockets(options_.external_unix_sockets);
    if (options_.leave_stopped) rpc->set_leave_stopped(true);
    for (const std::string& external : options_.external) rpc->add_external(external);
  }

  absl::Status Send(const pb::RpcRequest& request) {
    std::string bytes = request.SerializeAsString();
    for (;;) {
      ssize_t n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n >= 0) return absl::OkStatus();
      if (errno == EINTR) continue;
      // A peer that is gone is noticed, and explained better, where its answer is read.
      if (errno == EPIPE || errno == ECONNRESET) return absl::OkStatus();
      return ErrnoStatus(errno, "talking to CRIU");
    }
  }

  // The next message; nothing when CRIU has gone without one.
  absl::StatusOr<std::optional<pb::RpcResponse>> Receive() {
    for (;;) {
      // CRIU's own end is watched too: tasks in the making hold copies of its socket, so that its death alone
      // does not bring end-of-file.
      pollfd entries[3] = {{socket_.get(), POLLIN, 0}, {cancel_fd_, POLLIN, 0}, {criu_.pidfd(), POLLIN, 0}};
      if (::poll(entries, 3, -1) < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(errno, "waiting for CRIU");
      }
      if (entries[1].revents != 0) return absl::CancelledError("restore cancelled");
      std::string bytes(kMaxMessageBytes, '\0');
      // Plain recv drops descriptors that may ride along (a terminal's), which is what we want.
      ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {
        if (entries[2].revents != 0) return std::nullopt;
        continue;
      }
      if (n <= 0) return std::nullopt;
      pb::RpcResponse response;
      if (!response.ParseFromArray(bytes.data(), static_cast<int>(n))) {
        return absl::InternalError("CRIU sent a message over its RPC that can't be read");
      }
      return response;
    }
  }

  // Answers CRIU's questions until it reports the end.
  Outcome Converse() {
    Outcome outcome;
    absl::Status refusal;
    for (;;) {
      absl::StatusOr<std::optional<pb::RpcResponse>> received = Receive();
      if (!received.ok()) {
        outcome.status = received.status();
        return outcome;
      }
      if (!received->has_value()) {
        outcome.status = refusal.ok() ? absl::InternalError("CRIU ended early") : refusal;
        outcome.criu_failed = refusal.ok();
        return outcome;
      }
      const pb::RpcResponse& response = **received;
      if (response.type() != kTypeNotify) {
        if (response.restored().pid() > 0) outcome.root = response.restored().pid();
        if (!refusal.ok()) {
          outcome.status = refusal;
        } else if (!response.success() || outcome.root <= 0) {
          outcome.status = absl::InternalError("CRIU failed");
          outcome.criu_failed = true;
        }
        return outcome;
      }
      if (response.notification().pid() > 0) outcome.root = response.notification().pid();
      if (response.notification().stage() == kTasksReadyStage) {
        refusal = TasksReady(outcome.root);
        // CRIU kills the tree at our word: its orphans must come to us.
        if (!refusal.ok()) subreaper_.emplace();
      }
      pb::RpcRequest answer;
      answer.set_type(kTypeNotify);
      answer.set_notify_success(refusal.ok());
      if (absl::Status sent = Send(answer); !sent.ok()) {
        outcome.status = sent;
        return outcome;
      }
    }
  }

  absl::Status TasksReady(pid_t root) {
    if (!options_.pidfile.empty()) {
      RK_RETURN_IF_ERROR(WriteFileAtomically(options_.pidfile, absl::StrCat(root, "\n"), 0644));
      wrote_pidfile_ = true;
    }
    return observer_ != nullptr ? observer_->TasksReady(root) : absl::OkStatus();
  }

  // Leaves nothing of the tree and says what went wrong.
  absl::Status CleanUp(const Outcome& outcome) {
    if (!subreaper_.has_value()) subreaper_.emplace();
    ExitState exit;
    if (outcome.status.code() == absl::StatusCode::kCancelled && !outcome.criu_failed) {
      criu_.Signal(SIGKILL).IgnoreError();
    }
    socket_.Reset();
    if (absl::StatusOr<ExitState> waited = criu_.Wait(); waited.ok()) exit = *waited;
    // CRIU kills its tasks when it fails, but a root made our child is left for us to reap, and a CRIU that
    // was killed itself leaves everything.
    std::vector<pid_t> image_pids = ImagePids();
    pid_t root = outcome.root > 0 || image_pids.empty() ? outcome.root : image_pids.front();
    KillRestoredTree(root, image_pids, criu_start_ticks_);
    if (wrote_pidfile_) ::unlink(options_.pidfile.c_str());
    if (!outcome.criu_failed) return outcome.status;
    absl::StatusOr<std::string> log = ReadFile(log_path());
    return FailureStatus(Operation::kRestore, exit, log.ok() ? *log : "", log_path());
  }

  // The PIDs in the image, the root's first.
  std::vector<pid_t> ImagePids() const {
    std::vector<pid_t> pids;
    absl::StatusOr<std::string> content = ReadFile(absl::StrCat(options_.images_directory, "/pstree.img"));
    if (!content.ok()) return pids;
    absl::StatusOr<std::vector<PstreeEntry>> tree = ParsePstree(*content);
    if (!tree.ok()) return pids;
    for (const PstreeEntry& entry : *tree) pids.push_back(entry.pid);
    return pids;
  }

  const RestoreOptions& options_;
  RestoreObserver* const observer_;
  const int cancel_fd_;
  UniqueFd images_fd_, work_fd_, config_, socket_;
  Subprocess criu_;
  uint64_t criu_start_ticks_ = 0;
  bool wrote_pidfile_ = false;
  std::optional<TemporarySubreaper> subreaper_;  // once it has failed
};

}  // namespace

absl::StatusOr<RestoredTree> RunRestore(const Installation& criu, const RestoreOptions& options,
                                        RestoreObserver* observer, int cancel_fd) {
  return RestoreSession(options, observer, cancel_fd).Run(criu);
}

}  // namespace rekindle::criu
