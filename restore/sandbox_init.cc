#include "restore/sandbox_init.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/network_namespace.h"
#include "base/oom_score.h"
#include "base/packet_socket.h"
#include "base/pidfd.h"
#include "base/session_keyring.h"
#include "base/status.h"
#include "base/status_json.h"
#include "base/subprocess.h"
#include "restore/own_temporary.h"
#include "restore/sandbox_making.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

constexpr int kHighNumbers = 64;  // above every number that a descriptor must have in CRIU

constexpr char kMakerDied[] = "whoever restored it has died";
// The kernel closes the sockets of a process that has died one after the other.
constexpr int kHangsUpWithinMs = 500;

bool HangsUp(const UniqueFd& socket) {
  pollfd entry{socket.get(), 0, 0};
  return ::poll(&entry, 1, kHangsUpWithinMs) > 0;
}

struct JobEndNote {
  int code = 0, signal = 0;
  std::string why;  // empty: it ended by itself
  bool damaged = false, refused = false;
};

class Init {
 public:
  explicit Init(InitSetup setup) : setup_(std::move(setup)) {}

  [[noreturn]] void Run() {
    ::prctl(PR_SET_NAME, "rekindle-init");
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    signals_.Reset(::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
    absl::Status status = SetUp();
    Answer(status, Json::object());
    if (!status.ok()) ::_exit(1);
    for (;;) {
      std::vector<pollfd> entries = {
          {signals_.get(), POLLIN, 0}, {setup_.keeper.get(), POLLIN, 0}, {setup_.control.get(), POLLIN, 0}};
      for (const UniqueFd& more : more_controls_) entries.push_back({more.get(), POLLIN, 0});
      if (::poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[1].revents != 0) OnKeeper();
      if (entries[0].revents != 0) OnSignals();
      if (entries[2].revents != 0) OnControl(setup_.control);
      for (size_t i = 3; i < entries.size(); ++i) {
        if (entries[i].revents != 0) OnControl(more_controls_[i - 3]);
      }
      std::erase_if(more_controls_, [](const UniqueFd& control) { return !control.valid(); });
    }
  }

 private:
  absl::Status SetUp() {
    if (const int error = LeaveSessionKeyring(); error != 0)
      return ErrnoStatus(error, error == EDQUOT ? "giving a sandbox a session keyring of its own: raise "
                                                  "/proc/sys/kernel/keys/maxkeys and maxbytes"
                                                : "giving a sandbox a session keyring of its own");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
      return ErrnoStatus(errno, "keeping a sandbox's mounts to itself");
    }
    if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
      return ErrnoStatus(errno, "mounting /proc in a sandbox");
    }
    RK_ASSIGN_OR_RETURN(UniqueFd directory, OpenFile(setup_.directory, O_RDONLY | O_DIRECTORY));
    // For as long as this sandbox lives: without it the folder is a leftover (SandboxFactory).
    if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
      return ErrnoStatus(errno, absl::StrCat("locking ", setup_.directory));
    }
    if (::dup3(directory.get(), kInitDirectory, O_CLOEXEC) < 0) return ErrnoStatus(errno, setup_.directory);
    if (directory.get() == kInitDirectory) (void)directory.Release();
    if (setup_.loopback) RK_RETURN_IF_ERROR(BringUpLoopback());
    return absl::OkStatus();
  }

  void Answer(const absl::Status& status, Json body, const std::vector<int>& descriptors = {}) {
    if (status.ok()) {
      body["ok"] = true;
    } else {
      body = Json::object();
      PutStatus(status, &body);
    }
    SendPacket(asked_on_, body.dump(-1, ' ', false, Json::error_handler_t::replace), descriptors)
        .IgnoreError();
  }

  void OnControl(UniqueFd& control) {
    asked_on_ = control.get();
    auto packet = ReceivePacket(control.get(), MSG_DONTWAIT);
    if (!packet.ok()) {
      if (!absl::IsUnavailable(packet.status())) Answer(packet.status(), {});
      return;
    }
    if (!packet->has_value()) {
      // Whoever asked for this sandbox has gone. A job that somebody knows of goes on; what is half made does
      // not.
      const bool is_maker = &control == &setup_.control;
      control.Reset();
      if (is_maker && (root_ == 0 || until_stay_)) End({1, 0, kMakerDied});
      return;
    }
    try {
      const Json request = Json::parse((*packet)->bytes);
      Handle(request, (*packet)->descriptors);
    } catch (const Json::exception& e) {
      Answer(absl::InternalError(absl::StrCat("a request to a sandbox makes no sense: ", e.what())), {});
    }
  }

  void Handle(const Json& request, std::vector<UniqueFd>& descriptors) {
    const std::string what = request.at("do");
    if (what == "criu") {
      std::vector<UniqueFd> made;
      absl::Status status = StartCriu(request, descriptors, &made);
      std::vector<int> numbers;
      for (const UniqueFd& fd : made) numbers.push_back(fd.get());
      Answer(status, Json::object(), numbers);
    } else if (what == "set") {
      Answer(Set(request), Json::object());
    } else if (what == "hide") {
      Answer(Hide(request.at("folder")), Json::object());
    } else if (what == "processes") {
      SendProcesses(request.at("pids").get<std::vector<pid_t>>());
    } else if (what == "watch") {
      root_ = request.at("pid");
      until_stay_ = request.value("until_stay", false);
      Answer(absl::OkStatus(), {{"until_stay", until_stay_}});
      if (auto early = early_ends_.find(root_); early != early_ends_.end()) End(early->second);
      early_ends_.clear();
    } else if (what == "stay") {
      until_stay_ = false;
    } else if (what == "also") {
      if (descriptors.size() == 1) more_controls_.push_back(std::move(descriptors[0]));
      Answer(absl::OkStatus(), Json::object());
    } else if (what == "make") {
      absl::StatusOr<MadeSandbox> made = MakeSandbox(request, descriptors);
      if (!made.ok()) return Answer(made.status(), {});
      children_.insert(made->pid);
      Answer(absl::OkStatus(), Json::object(), {made->pidfd.get()});
    } else if (what == "next pid") {
      const std::string before = absl::StrCat(request.at("pid").get<pid_t>() - 1);
      auto file = OpenFile("/proc/sys/kernel/ns_last_pid", O_WRONLY);
      Answer(file.ok() ? WriteFully(file->get(), before.data(), before.size(), "ns_last_pid") : file.status(),
             Json::object());
    } else if (what == "end") {
      End({0, SIGKILL, "asked to"});
    } else {
      Answer(absl::UnimplementedError(absl::StrCat("a sandbox does not know '", what, "'")), {});
    }
  }

  // The peer of CRIU's socket must be a process that CRIU can see: it looks up descriptors of its peer.
  absl::Status StartCriu(const Json& request, const std::vector<UniqueFd>& descriptors,
                         std::vector<UniqueFd>* made) {
    const std::vector<std::string> argv = request.at("argv");
    const std::vector<int> numbers = request.at("descriptors");
    const size_t groups = request.at("groups");
    if (argv.empty() || descriptors.size() != numbers.size() + groups) {
      return absl::InternalError("starting CRIU in a sandbox: the descriptors do not match");
    }
    RK_ASSIGN_OR_RETURN(auto sockets, PacketSocketPair());
    std::vector<char*> arguments = Pointers(argv);
    std::vector<std::string> variables = EnvironmentWith(request.at("environment"));
    std::vector<char*> environment = Pointers(variables);
    const pid_t pid = ::fork();
    if (pid < 0) return ErrnoStatus(errno, "starting CRIU in a sandbox");
    if (pid == 0) {
      for (size_t i = 0; i < groups; ++i) {
        if (::write(descriptors[numbers.size() + i].get(), "0", 1) != 1) ::_exit(126);
      }
      ::setsid();
      // CRIU gives a process the score of its image, unless that is 0: then it keeps CRIU's own.
      TakeOnOomScore(0);
      std::vector<std::pair<int, int>> moves = {{sockets.second.get(), kSocketInCriu}};
      for (size_t i = 0; i < numbers.size(); ++i) moves.emplace_back(descriptors[i].get(), numbers[i]);
      for (auto& move : moves) move.first = ::fcntl(move.first, F_DUPFD_CLOEXEC, kHighNumbers);
      for (const auto& move : moves) {
        if (::dup2(move.first, move.second) < 0) ::_exit(126);
      }
      ::syscall(SYS_close_range, kHighNumbers, ~0U, 0);
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::execve(arguments[0], arguments.data(), environment.data());
      ::_exit(127);
    }
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) return ErrnoStatus(errno, "starting CRIU in a sandbox");
    made->push_back(std::move(sockets.first));
    made->push_back(std::move(pidfd));
    return absl::OkStatus();
  }

  absl::Status Set(const Json& request) {
    const std::string host_name = request.value("host_name", "");
    if (!host_name.empty() && ::sethostname(host_name.c_str(), host_name.size()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("naming the sandbox's host '", host_name, "'"));
    }
    RK_RETURN_IF_ERROR(SetTemporary({request.value("temporary", uint64_t{0}),
                                     request.value("keep", std::vector<std::string>()),
                                     {},
                                     request.value("shared_memory", uint64_t{0})}));
    for (const auto& [from, to] :
         request.value("binds", std::vector<std::pair<std::string, std::string>>())) {
      if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
        return ErrnoStatus(errno, absl::StrCat("binding ", from, " to ", to,
                                               " in the sandbox (both must be there, and of one kind)"));
      }
    }
    return MakeReadOnly(request.value("read_only", std::vector<std::string>()));
  }

  // Makes what is not there yet, and gives what is there another size.
  absl::Status SetTemporary(const OwnTemporary& wanted) {
    OwnTemporary missing = wanted, present;
    const auto part = [this, &wanted, &missing, &present](uint64_t OwnTemporary::*bytes) {
      if (own_.*bytes == 0) return;
      missing.*bytes = 0;
      if (wanted.*bytes != own_.*bytes) present.*bytes = wanted.*bytes;
    };
    part(&OwnTemporary::bytes);
    part(&OwnTemporary::shared_memory);
    RK_RETURN_IF_ERROR(MountOwnTemporary(missing));
    RK_RETURN_IF_ERROR(ResizeOwnTemporary(present.bytes, present.shared_memory));
    if (wanted.bytes > 0) own_.bytes = wanted.bytes;
    if (wanted.shared_memory > 0) own_.shared_memory = wanted.shared_memory;
    return absl::OkStatus();
  }

  static absl::Status Hide(const std::string& folder) {
    if (::mount("tmpfs", folder.c_str(), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                "size=4k,mode=0711") == 0 ||
        errno == ENOENT) {
      return absl::OkStatus();
    }
    return ErrnoStatus(errno, absl::StrCat("hiding ", folder, " in a sandbox"));
  }

  void SendProcesses(const std::vector<pid_t>& pids) {
    std::vector<UniqueFd> opened;
    std::vector<int> numbers;
    for (pid_t pid : pids) {
      absl::StatusOr<UniqueFd> process = OpenProcess(pid);
      if (!process.ok()) {
        return Answer(Annotate(process.status(), absl::StrCat("finding process ", pid, " of a sandbox")), {});
      }
      opened.push_back(*std::move(process));
      numbers.push_back(opened.back().get());
    }
    Answer(absl::OkStatus(), Json::object(), numbers);
  }

  void OnKeeper() {
    auto packet = ReceivePacket(setup_.keeper.get(), MSG_DONTWAIT);
    if (absl::IsUnavailable(packet.status())) return;
    if (absl::IsResourceExhausted(packet.status())) {
      End({0, SIGKILL,
           "its sandbox has no descriptors left (it holds one for each process whose memory is missing): "
           "raise the limit (LimitNOFILE=, ulimit -n)"});
    }
    if (packet.ok() && packet->has_value()) {
      if ((*packet)->bytes == "d") {
        kept_.clear();
        served_ = true;
      } else if (absl::StartsWith((*packet)->bytes, "g")) {
        kept_.erase((*packet)->bytes.substr(1));
      } else if (absl::StartsWith((*packet)->bytes, "x")) {
        End({0, SIGKILL, (*packet)->bytes.substr(1)});
      } else if (absl::StartsWith((*packet)->bytes, "R")) {
        End({0, SIGKILL, (*packet)->bytes.substr(1), /*damaged=*/true, /*refused=*/true});
      } else if (absl::StartsWith((*packet)->bytes, "X")) {
        End({0, SIGKILL, (*packet)->bytes.substr(1), /*damaged=*/true});
      } else {
        has_kept_ = true;
        for (UniqueFd& fd : (*packet)->descriptors) kept_[(*packet)->bytes.substr(1)] = std::move(fd);
      }
      return;
    }
    // Before the job runs, CRIU would wait for it for ever. After that a process may have been forked of
    // which nobody has told yet: all that were known having gone means nothing.
    if (served_ || (root_ != 0 && !has_kept_)) return setup_.keeper.Reset();
    // Until the pager gets it the keeper's other end is that of whoever makes the sandbox, as the control's
    // is.
    if (root_ == 0 && HangsUp(setup_.control)) return End({1, 0, kMakerDied});
    // Open until all processes have gone: the pager's guard waits for its end.
    End({0, SIGKILL, "the pager that served its missing memory has died"});
  }

  void OnSignals() {
    signalfd_siginfo info[8];
    ssize_t n;
    while ((n = ::read(signals_.get(), info, sizeof info)) > 0) {
      for (size_t i = 0; i < static_cast<size_t>(n) / sizeof info[0]; ++i) {
        const int signal = static_cast<int>(info[i].ssi_signo);
        // What is sent to the sandbox is meant for the job.
        if (signal != SIGCHLD && root_ > 0) ::kill(root_, signal);
      }
    }
    int status;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
      JobEndNote end;
      if (WIFSIGNALED(status)) {
        end.signal = WTERMSIG(status);
      } else {
        end.code = WEXITSTATUS(status);
      }
      children_.erase(pid);
      if (pid == root_) root_end_ = end;
      // The root may end before anybody said that it is the root.
      if (root_ == 0) early_ends_[pid] = end;
    }
    // A template that is taken down leaves the sandboxes of its children, which lie in this one, to their
    // jobs.
    if (root_end_.has_value() && children_.empty()) End(*root_end_);
  }

  // Takes everything with it. The kept descriptors go last: while one of their tasks lives its missing pages
  // must not turn into zeros.
  [[noreturn]] void End(const JobEndNote& end) {
    // Before the pager can see all gone without knowing why.
    if (end.why.empty() && end.signal == 0 && setup_.keeper.valid()) {
      SendPacket(setup_.keeper.get(), absl::string_view(&kJobExited, 1), {}, MSG_DONTWAIT).IgnoreError();
    }
    ::kill(-1, SIGKILL);
    while (::waitpid(-1, nullptr, __WALL) > 0 || errno == EINTR) {
    }
    const Json note = {{"event", "end"}, {"code", end.code},       {"signal", end.signal},
                       {"why", end.why}, {"damaged", end.damaged}, {"refused", end.refused}};
    const std::string text = note.dump(-1, ' ', false, Json::error_handler_t::replace);
    auto file =
        UniqueFd(::openat(kInitDirectory, kStatusFile, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.valid()) WriteFully(file.get(), text.data(), text.size(), kStatusFile).IgnoreError();
    // With nobody there to be told, nobody tidies up either. What somebody should know waits for the next who
    // makes sandboxes (SandboxFactory).
    const bool told = setup_.control.valid() && SendPacket(setup_.control.get(), text).ok();
    if (!told && (root_ == 0 || until_stay_ || end.why.empty())) RemoveTree(setup_.directory).IgnoreError();
    ::_exit(end.signal != 0 ? 128 + end.signal : end.code);
  }

  InitSetup setup_;
  UniqueFd signals_;
  bool served_ = false;                   // all memory is there
  bool has_kept_ = false;                 // there was memory that was not
  std::map<std::string, UniqueFd> kept_;  // userfaultfds, by the pager's numbers
  std::vector<UniqueFd> more_controls_;
  std::set<pid_t> children_;  // inits of sandboxes that were made in this one
  int asked_on_ = setup_.control.get();
  std::optional<JobEndNote> root_end_;
  pid_t root_ = 0;
  bool until_stay_ = false;  // ends with whoever made it
  OwnTemporary own_;  // sizes alone
  std::map<pid_t, JobEndNote> early_ends_;
};

}  // namespace

void RunSandboxInit(InitSetup setup) { Init(std::move(setup)).Run(); }

}  // namespace rekindle::restore
