// Linked into a test program, tells where a test hangs, and ends it: ctest's own limit says nothing of that.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/base/config.h"
#include "absl/base/thread_annotations.h"
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file.h"

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#define REKINDLE_SANITIZED 1
#endif

namespace rekindle::store {
namespace {

#ifdef REKINDLE_SANITIZED
constexpr absl::Duration kLongestTest = absl::Minutes(10);

// Abseil's does not find its way through sanitized frames.
void TellStack(int /*signal*/) {
  __sanitizer_print_stack_trace();
  ::_exit(1);
}
void TellStackAtAbort() { ::signal(SIGABRT, TellStack); }
#else
constexpr absl::Duration kLongestTest = absl::Minutes(2);

void TellStackAtAbort() {
  absl::InitializeSymbolizer("/proc/self/exe");
  absl::InstallFailureSignalHandler({});
}
#endif

void TellOfThreads() {
  auto threads = ListDirectory("/proc/self/task");
  for (const std::string& thread : threads.value_or(std::vector<std::string>())) {
    for (const char* file : {"stat", "syscall", "wchan", "stack"}) {
      auto content = ReadFile(absl::StrCat("/proc/self/task/", thread, "/", file));
      fprintf(stderr, "thread %s, %s: %s\n", thread.c_str(), file,
              content.ok() ? content->c_str() : content.status().ToString().c_str());
    }
  }
}

class HangWatch : public testing::EmptyTestEventListener {
 public:
  HangWatch() : thread_([this] { Watch(); }) {}
  ~HangWatch() override {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = changed_ = true;
    }
    thread_.join();
  }
  void OnTestStart(const testing::TestInfo& /*info*/) override { Change(true); }
  void OnTestEnd(const testing::TestInfo& /*info*/) override { Change(false); }

 private:
  void Change(bool in_test) {
    absl::MutexLock lock(&mutex_);
    in_test_ = in_test;
    changed_ = true;
  }
  void Watch() {
    absl::MutexLock lock(&mutex_);
    while (!stop_) {
      changed_ = false;
      mutex_.AwaitWithTimeout(absl::Condition(&changed_), in_test_ ? kLongestTest : absl::InfiniteDuration());
      if (changed_ || !in_test_) continue;
      fprintf(stderr, "the test hangs\n");
      TellOfThreads();
      // The main thread is the one that runs the test; the handler tells its stack.
      ::syscall(SYS_tgkill, ::getpid(), ::getpid(), SIGABRT);
      return;
    }
  }

  absl::Mutex mutex_;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_test_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

const bool installed = [] {
  TellStackAtAbort();
  testing::UnitTest::GetInstance()->listeners().Append(new HangWatch);
  return true;
}();

}  // namespace
}  // namespace rekindle::store
