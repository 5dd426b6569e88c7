#include "base/ends_for_limits.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/descriptor_limit.h"

namespace rekindle {
namespace {

const char* program_that_ends = "";
std::terminate_handler ends_else = nullptr;

// Without memory, as there may be none.
void Tell(const char* cause) {
  char text[512];
  const int length = std::snprintf(text, sizeof text, "%s: error: %s\n", program_that_ends, cause);
  if (length > 0) {
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, static_cast<size_t>(length));
  }
}

[[noreturn]] void End() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_array_new_length&) {
    // No limit's: something is wrong.
  } catch (const std::bad_alloc&) {
    Tell(
        "there is no memory left: raise the limit of what it may have (ulimit -v, ulimit -d, MemoryMax=, "
        "memory.max)");
    ::_exit(1);
  } catch (const std::system_error& error) {
    if (error.code().value() == EAGAIN || error.code().value() == ENOMEM) {
      Tell(
          "no thread could be made: raise the limit of threads (ulimit -u, TasksMax=, pids.max), or of "
          "memory (ulimit "
          "-v), of which each takes some");
      ::_exit(1);
    }
  } catch (...) {
  }
  // It tells what was thrown.
  if (ends_else != nullptr) ends_else();
  std::abort();
}

}  // namespace

absl::Status CheckDescriptorLimit(uint64_t least, const char* program) {
  const uint64_t now = DescriptorLimit();
  if (now >= least) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      program, " may have ", now, " files open at a time, and needs ", least,
      " at least: raise the limit (`ulimit -n`; LimitNOFILE= of a unit; /etc/security/limits.conf)"));
}

void TellOfLimitsAtTheEnd(const char* program) {
  program_that_ends = program;
  const std::terminate_handler before = std::set_terminate(End);
  if (before != End) ends_else = before;
}

}  // namespace rekindle
