#include "tests/hook/outside.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"

namespace rekindle::hook {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kNamespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;

// Without its surroundings a test can say nothing; there is no skipping.
void Require(bool condition, const char* what) {
  if (condition) return;
  ::perror(what);
  std::abort();
}

std::string Link(const std::string& path) {
  char target[PATH_MAX];
  ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
  return length < 0 ? "" : std::string(target, static_cast<size_t>(length));
}

UniqueFd PidFd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool HasEnded(int pidfd) {
  pollfd ended{pidfd, POLLIN, 0};
  return ::poll(&ended, 1, 0) != 0;
}

// fork() with other flags, CLONE_PARENT among them. This process has one thread.
pid_t Clone(int flags) {
  clone_args arguments{};
  arguments.flags = static_cast<uint64_t>(flags);
  arguments.exit_signal = (flags & CLONE_PARENT) != 0 ? 0 : SIGCHLD;
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof(arguments)));
}

void SetNextPid(pid_t next) {
  int file = ::open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
  std::string last = absl::StrCat(next - 1);
  Require(::write(file, last.data(), last.size()) == static_cast<ssize_t>(last.size()), "ns_last_pid");
  ::close(file);
}

void MountOwnProc() {
  Require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount private");
  Require(::mount("proc", "/proc", "proc", 0, nullptr) == 0, "mount /proc");
}

// Tells `ready` that it is, then reaps whatever comes until it is killed. Keeps nothing of the test's open.
[[noreturn]] void BeInit(int ready) {
  ::close_range(3, static_cast<unsigned>(ready) - 1, 0);
  ::close_range(static_cast<unsigned>(ready) + 1, ~0u, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  Require(::write(ready, "+", 1) == 1, "telling that the init is ready");
  ::close(ready);
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    ::sigwaitinfo(&child, nullptr);
  }
}

void WaitForInit(int ready) {
  char byte;
  Require(::read(ready, &byte, 1) == 1, "the init of a sandbox");
}

std::pair<UniqueFd, UniqueFd> Pipe() {
  int ends[2];
  Require(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void KillAndReap(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

Channel::Channel(UniqueFd socket) : socket_(std::move(socket)) {}

std::pair<Channel, UniqueFd> Channel::Pair() {
  int ends[2];
  Require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  return {Channel(UniqueFd(ends[0])), UniqueFd(ends[1])};
}

void Channel::Send(const Json& message, const std::vector<int>& descriptors) {
  std::string text = message.dump();
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  iovec data{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
  }
  Require(::sendmsg(fd(), &header, MSG_NOSIGNAL) >= 0, "sendmsg");
}

void Channel::SendText(const std::string& text) {
  Require(::send(fd(), text.data(), text.size(), MSG_NOSIGNAL) >= 0, "send");
}

Json Channel::Receive() {
  pollfd readable{fd(), POLLIN, 0};
  if (::poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) <= 0) {
    return {{"type", "(none in time)"}};
  }
  std::string text(1 << 17, '\0');
  ssize_t length = ::recv(fd(), text.data(), text.size(), 0);
  if (length <= 0) return {{"type", "(end)"}};
  text.resize(static_cast<size_t>(length));
  return Json::parse(text);
}

std::string Namespace(pid_t pid, const std::string& name) {
  return Link(absl::StrCat("/proc/", pid, "/ns/", name));
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::string list = ReadFile(absl::StrCat("/proc/", pid, "/task/", pid, "/children")).value_or("");
  for (absl::string_view word : absl::StrSplit(list, ' ', absl::SkipWhitespace())) {
    pid_t child;
    if (absl::SimpleAtoi(word, &child)) children.push_back(child);
  }
  return children;
}

std::vector<std::string> Descriptors(pid_t pid) {
  std::vector<std::string> descriptors;
  std::string folder = absl::StrCat("/proc/", pid, "/fd");
  for (const std::string& fd : ListDirectory(folder).value_or(std::vector<std::string>())) {
    descriptors.push_back(absl::StrCat(fd, " -> ", Link(absl::StrCat(folder, "/", fd))));
  }
  return descriptors;
}

bool WaitUntilParked(pid_t pid) {
  UniqueFd process = PidFd(pid);
  absl::Time deadline = absl::Now() + kPatience;
  std::string peer = absl::StrCat("/proc/", pid, "/fd/1001");
  while (Link(peer).rfind("socket:", 0) != 0) {
    if (!process.valid() || HasEnded(process.get()) || absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

std::optional<Channel> TakePeer(pid_t pid) {
  if (!WaitUntilParked(pid)) return std::nullopt;
  UniqueFd process = PidFd(pid);
  UniqueFd peer(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), 1001, 0)));
  if (!peer.valid()) return std::nullopt;
  return Channel(std::move(peer));
}

Domain::Domain(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
               const std::string& output) {
  auto [heard, ready] = Pipe();
  std::vector<std::string> arguments = argv, variables = environment;
  std::vector<char*> argument_pointers = Pointers(arguments), variable_pointers = Pointers(variables);
  init_ = Clone(kNamespaces);
  Require(init_ >= 0, "clone3");
  if (init_ == 0) {
    MountOwnProc();
    SetNextPid(kPidInside);
    pid_t program = ::fork();
    if (program == 0) {
      ::setsid();
      int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 0);
      ::dup2(::open(output.c_str(), O_WRONLY | O_CREAT, 0600), 1);
      ::close_range(3, ~0u, 0);
      ::execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
      ::_exit(127);
    }
    BeInit(ready.get());
  }
  WaitForInit(heard.get());
  std::vector<pid_t> children = ChildrenOf(init_);
  Require(children.size() == 1, "the program of the domain");
  program_ = children[0];
}

Domain::~Domain() { KillAndReap(init_); }

Sandbox::Sandbox(const Domain& domain, const std::string& host_name) {
  auto [heard, ready] = Pipe();
  UniqueFd own(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  UniqueFd program = PidFd(domain.program());
  std::vector<pid_t> children_before = ChildrenOf(::getpid());
  Require(::setns(program.get(), CLONE_NEWPID) == 0, "setns to the domain's PID namespace");
  // Only a process in the domain's PID namespace can make one below it.
  pid_t maker = Clone(0);
  Require(maker >= 0, "clone3");
  if (maker == 0) {
    pid_t init = Clone(CLONE_NEWPID | CLONE_PARENT);
    Require(init >= 0, "clone3 of the sandbox's init");
    if (init > 0) ::_exit(0);
    constexpr int kOthers = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;
    Require(::setns(program.get(), kOthers) == 0, "setns to the domain");
    Require(::unshare(kOthers) == 0, "unshare");
    MountOwnProc();
    Require(::sethostname(host_name.data(), host_name.size()) == 0, "sethostname");
    // The process in between takes the PID before the copy's.
    SetNextPid(Domain::kPidInside - 1);
    BeInit(ready.get());
  }
  Require(::setns(own.get(), CLONE_NEWPID) == 0, "setns back");
  ready.Reset();
  WaitForInit(heard.get());
  ::waitpid(maker, nullptr, 0);
  for (pid_t child : ChildrenOf(::getpid())) {
    if (std::count(children_before.begin(), children_before.end(), child) == 0) init_ = child;
  }
  pidfd_ = PidFd(init_);
  Require(pidfd_.valid(), "pidfd of the sandbox's init");
}

Sandbox::~Sandbox() { KillAndReap(init_); }

}  // namespace rekindle::hook
