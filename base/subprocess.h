// Child processes with exactly the descriptors they need. A Subprocess is owned by one thread at a time.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"

namespace rekindle {

struct SubprocessOptions {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH when it has no slash
  // (descriptor here, number in the child). Every other descriptor is closed in the child; 0, 1 and 2 are
  // /dev/null unless named.
  std::vector<std::pair<int, int>> descriptors;
  std::vector<std::string> environment;  // "K=V"; empty: inherit ours
  std::string working_directory;         // empty: inherit ours
  bool new_session = false;              // setsid() in the child
  bool new_keyring = false;              // a session keyring of its own
  bool die_with_parent_thread = false;   // SIGKILL when the thread that started it ends
  int umask = -1;                        // of the child; negative: ours
  std::optional<Owner> run_as;           // whose it is, with a session keyring of its own; none: ours
  // As base/oom_score.h, as far as it may be. Nothing: ours, or with `run_as` what others are to have.
  std::optional<int> oom_score;
  // Called in the child while it is ours still. Async-signal-safe.
  std::function<void()> prepare;
  pid_t number = 0;  // of the child in the PID namespace in which it is born; 0: what the kernel gives
};

// Our own environment with these "K=V" in place of those of the same name. What is to be preloaded
// (LD_PRELOAD) comes before what is already.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& variables);

// How a child ended.
struct ExitState {
  int code = 0;    // exit status when signal is 0
  int signal = 0;  // the signal that killed it, or 0
  bool ok() const { return signal == 0 && code == 0; }
  std::string ToString() const;  // "exit status 3", "killed by signal 9 (Killed)"
};

class Subprocess {
 public:
  // Starts the program. NotFound when it does not exist, PermissionDenied when it can't be run, AlreadyExists
  // when its `number` is taken.
  static absl::StatusOr<Subprocess> Start(const SubprocessOptions& options);
  Subprocess() = default;
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&& other) noexcept;
  ~Subprocess();  // a child still running is killed (SIGKILL) and reaped

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when the child has ended
  bool running() const { return pid_ > 0; }

  // Waits until it has ended and reaps it.
  absl::StatusOr<ExitState> Wait();
  // DeadlineExceeded when it is still running after `timeout`.
  absl::StatusOr<ExitState> WaitFor(absl::Duration timeout);
  absl::Status Signal(int signal) const;
  // The child is no longer ours to kill or reap.
  pid_t Release();

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
};

// Runs to the end and returns what it printed on standard output and standard error together. What it leaves
// behind when it ends is left alone. After `timeout` it is killed, with all that it has started in its
// process group, which is one of its own.
struct CommandResult {
  ExitState exit;
  std::string output;
};
absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& argv, absl::Duration timeout);

// `strings` as execve takes its arguments and its environment: pointers into them, a null pointer last.
std::vector<char*> Pointers(const std::vector<std::string>& strings);

}  // namespace rekindle
