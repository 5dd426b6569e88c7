// A process of a test's own making: forked, prepared, and waiting to be looked at.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

namespace rekindle {

// Not thread-safe. No other thread may run in the test while one is made.
class TestChild {
 public:
  // The child calls `prepare`, then `wait`, which does not return; it dies with this object or with the test.
  // Returns when it is prepared.
  explicit TestChild(
      const std::function<bool()>& prepare = [] { return true; },
      const std::function<void()>& wait = AwaitSignal) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      bool prepared = prepare();
      if (::write(ends[1], &prepared, sizeof prepared) != sizeof prepared) ::_exit(1);
      ::close(ends[1]);
      wait();
      ::_exit(1);
    }
    ::close(ends[1]);
    if (::read(ends[0], &prepared_, sizeof prepared_) != sizeof prepared_) prepared_ = false;
    ::close(ends[0]);
  }
  TestChild(const TestChild&) = delete;
  TestChild& operator=(const TestChild&) = delete;
  ~TestChild() {
    Kill();
    Reap();
  }

  // Whether `prepare` ran and returned true.
  bool prepared() const { return prepared_; }
  pid_t pid() const { return pid_; }

  void Kill() const {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  // Stops it and returns when it stands still.
  bool Stop() const {
    int status = 0;
    return ::kill(pid_, SIGSTOP) == 0 && ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }
  // Blocks until it is dead; it stays a zombie.
  bool AwaitEnd() const {
    siginfo_t info;
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0;
  }
  void Reap() {
    if (pid_ <= 0) return;
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  static void AwaitSignal() {
    for (;;) ::pause();
  }

  pid_t pid_ = -1;
  bool prepared_ = false;
};

}  // namespace rekindle
