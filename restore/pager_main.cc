// rekindle-pager: see pager.h. Started by whoever needs it first, on a socket that listens already; ends by
// itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadlock_checks.h"
#include "base/log.h"
#include "base/oom_score.h"
#include "base/program_start.h"
#include "restore/pager.h"
#include "restore/pager_guard.h"
#include "restore/pager_protocol.h"

int main(int argc, char** argv) {
  rekindle::BeginProgram();
  rekindle::LeaveOutDeadlockChecks();
  rekindle::restore::PagerOptions options;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &options.cache_bytes) ||
      ::fcntl(rekindle::restore::kPagerSocket, F_GETFD) < 0) {
    std::fputs("rekindle-pager is started by Rekindle, not by hand.\n", stderr);
    return 2;
  }
  options.store = argv[1];
  options.threads = std::max(2u, std::thread::hardware_concurrency());
  options.client_threads = std::max<size_t>(options.client_threads, options.threads);
  options.fill_threads = std::max<size_t>(options.fill_threads, options.client_threads + 1);
  options.disk_threads = std::max<size_t>(options.disk_threads, 4 * options.threads);
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ::signal(SIGPIPE, SIG_IGN);
  // What is sent to the daemon's group is not meant for it: jobs need it.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::fcntl(rekindle::restore::kPagerSocket, F_SETFD, FD_CLOEXEC);
  // With it all copies end that lack memory.
  rekindle::SpareFromOutOfMemory();
  // Ahead of all threads.
  if (absl::Status guarded = rekindle::restore::StartPagerGuard(); !guarded.ok()) {
    rekindle::Log(rekindle::LogLevel::kError, guarded.message());
    return 1;
  }
  auto pager = rekindle::restore::Pager::Make(options, rekindle::UniqueFd(rekindle::restore::kPagerSocket));
  if (!pager.ok()) {
    rekindle::Log(rekindle::LogLevel::kError, pager.status().message());
    return 1;
  }
  try {
    (*pager)->Run();
  } catch (const std::system_error& e) {
    // At its start, when it serves nobody.
    rekindle::Log(rekindle::LogLevel::kError,
                  absl::StrCat("the pager can't have its threads: ", e.what(),
                               "; raise the limit of processes (TasksMax=, pids.max, ulimit -u)"));
    ::_exit(1);
  }
  return 0;
}
