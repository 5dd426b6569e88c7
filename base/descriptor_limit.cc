#include "base/descriptor_limit.h"

#include <sys/resource.h>

namespace rekindle {
namespace {

bool raised = false;
rlim_t original = 0;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit;
  if (raised || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  original = soft;
  raised = true;
}

uint64_t DescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

uint64_t OriginalDescriptorLimit() { return raised ? original : DescriptorLimit(); }

void RestoreDescriptorLimit() {
  rlimit limit;
  if (!raised || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = original < limit.rlim_max ? original : limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace rekindle
