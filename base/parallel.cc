#include "base/parallel.h"

#include <system_error>
#include <thread>
#include <vector>

namespace rekindle {

void InParallel(size_t count, const std::function<void(size_t i)>& part) {
  if (count == 0) return;
  std::vector<std::thread> helpers;
  helpers.reserve(count - 1);
  size_t begun = 1;
  try {
    for (; begun < count; ++begun) helpers.emplace_back(part, begun);
  } catch (const std::system_error&) {
    // The rest is done here.
  }
  part(0);
  for (size_t i = begun; i < count; ++i) part(i);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace rekindle
