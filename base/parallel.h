// Work that is shared by several threads and must be done where there can be no more threads too.
#pragma once

#include <cstddef>
#include <functional>

namespace rekindle {

// Calls part(i) once for each i below `count` and returns when all have: part(0) on the calling thread, the
// others on threads of their own. Where the kernel makes no more threads (a limit of processes is reached),
// the remaining parts run on the calling thread, one after the other: so no part may wait for another one to
// begin.
void InParallel(size_t count, const std::function<void(size_t i)>& part);

}  // namespace rekindle
