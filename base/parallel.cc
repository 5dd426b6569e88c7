#include "base/parallel.h"

#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rekindle {

void InParallel(size_t count, const std::function<void(size_t i)>& part) {
  if (count == 0) return;
  std::vector<std::exception_ptr> thrown(count);
  const auto run = [&](size_t i) {
    try {
      part(i);
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(count - 1);
  size_t begun = 1;
  try {
    for (; begun < count; ++begun) helpers.emplace_back(run, begun);
  } catch (const std::system_error&) {
    // The rest is done here.
  }
  run(0);
  for (size_t i = begun; i < count; ++i) run(i);
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

absl::Status NoMoreThreads(const std::system_error& error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no thread could be made for this: ", error.code().message(),
      ". Rekindle is at a limit of processes and threads: raise that of its cgroup (TasksMax= "
      "of rekindled's unit, pids.max), of its user (ulimit -u), or kernel.pid_max, or end some"));
}

}  // namespace rekindle
