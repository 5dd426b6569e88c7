// For tests of what happens where a process can't open anything more.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace rekindle {

// While it is there this process can open `left` descriptors more. Those that are open stay usable. No other
// thread may open or close any meanwhile.
class FewDescriptorsLeft {
 public:
  explicit FewDescriptorsLeft(int left = 0) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // The lowest that are free, the last of which is the limit.
    UniqueFd free[kMost + 1];
    for (int i = 0; i <= left; ++i) free[i].Reset(::dup(STDOUT_FILENO));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(free[left].get());
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  FewDescriptorsLeft(const FewDescriptorsLeft&) = delete;
  FewDescriptorsLeft& operator=(const FewDescriptorsLeft&) = delete;
  ~FewDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  static constexpr int kMost = 15;

 private:
  rlimit before_{};
};

}  // namespace rekindle
