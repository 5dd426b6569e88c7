#include "daemon/old_logs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

constexpr absl::string_view kLogSuffix = ".log";
constexpr size_t kDateDigits = 8, kTimeDigits = 6;
// Of what goes for its size alone.
constexpr absl::Duration kLeastAge = absl::Hours(24);

// Takes digits off the end, and the "-" before them: so many, or, with 0, any number of them.
bool ConsumeNumber(absl::string_view* text, size_t digits) {
  size_t from = text->size();
  while (from > 0 && absl::ascii_isdigit(static_cast<unsigned char>((*text)[from - 1]))) --from;
  const size_t found = text->size() - from;
  if (found == 0 || (digits != 0 && found != digits) || from == 0 || (*text)[from - 1] != '-') return false;
  text->remove_suffix(found + 1);
  return true;
}

bool ConsumeDateAndTime(absl::string_view* text) {
  absl::string_view rest = *text;
  if (!ConsumeNumber(&rest, kTimeDigits) || !ConsumeNumber(&rest, kDateDigits) || rest.empty()) return false;
  *text = rest;
  return true;
}

// Nobody else has it open, for as long as the descriptor is: whoever opens it waits for that. The kernel
// knows it of all processes, wherever they see the file.
bool HoldAlone(int fd) {
  // Being asked for the file is no reason to end, which is what the usual signal would do.
  return ::fcntl(fd, F_SETSIG, SIGURG) == 0 && ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
}

struct EndedLog {
  absl::Time written;
  uint64_t bytes;
  uid_t owner;
  std::string path;
};

uint64_t BytesOf(const struct stat& info) {
  constexpr uint64_t kBlock = 512;  // of stat, whatever the file system's
  return static_cast<uint64_t>(info.st_blocks) * kBlock;
}

// Returns whether it is gone by our doing.
bool RemoveUnlessOpen(const EndedLog& ended) {
  const UniqueFd log(::open(ended.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info;
  // Before it was held it may have been written to.
  if (!log.valid() || !HoldAlone(log.get()) || ::fstat(log.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      absl::TimeFromTimespec(info.st_mtim) != ended.written)
    return false;
  if (::unlink(ended.path.c_str()) == 0) return true;
  if (errno != ENOENT) {
    Log(LogLevel::kWarning, ErrnoStatus(errno, absl::StrCat("removing the old log ", ended.path)).message());
  }
  return false;
}

}  // namespace

std::optional<NamedLog> NamedLogOf(absl::string_view file) {
  for (size_t at = file.find(kLogSuffix); at != absl::string_view::npos; at = file.find(kLogSuffix, at + 1)) {
    const size_t end = at + kLogSuffix.size();
    if (end < file.size() && file[end] != '.' && file[end] != '-') continue;
    absl::string_view job = file.substr(0, at);
    bool is_named = ConsumeDateAndTime(&job);
    if (!is_named) is_named = ConsumeNumber(&job, 0) && ConsumeDateAndTime(&job);
    if (is_named) return NamedLog{std::string(job), std::string(file.substr(0, end))};
  }
  return std::nullopt;
}

size_t RemoveOldLogs(const std::string& folder, const LogBounds& bounds,
                     const std::function<bool(const NamedLog&)>& is_needed) {
  const absl::StatusOr<std::vector<std::string>> files = ListDirectory(folder);
  if (!files.ok()) return 0;  // there is none before the first job
  std::vector<EndedLog> logs;
  for (const std::string& file : *files) {
    const std::optional<NamedLog> named = NamedLogOf(file);
    struct stat info;
    const std::string path = absl::StrCat(folder, "/", file);
    if (!named || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || is_needed(*named)) continue;
    logs.push_back({absl::TimeFromTimespec(info.st_mtim), BytesOf(info), info.st_uid, path});
  }
  std::sort(logs.begin(), logs.end(),
            [](const EndedLog& a, const EndedLog& b) { return a.written < b.written; });
  const absl::Time now = absl::Now();
  const absl::Time before = bounds.age > absl::ZeroDuration() ? now - bounds.age : absl::InfinitePast();
  size_t removed = 0;
  struct OfOwner {
    uint64_t bytes = 0;
    std::deque<const EndedLog*> logs;  // the oldest first
  };
  std::map<uid_t, OfOwner> owners;
  uint64_t bytes = 0;
  for (const EndedLog& ended : logs) {
    if (ended.written < before) {
      removed += RemoveUnlessOpen(ended) ? 1 : 0;
      continue;
    }
    OfOwner& owner = owners[ended.owner];
    owner.logs.push_back(&ended);
    owner.bytes += ended.bytes;
    bytes += ended.bytes;
  }
  while (bounds.bytes != 0 && bytes > bounds.bytes) {
    OfOwner& most = std::max_element(owners.begin(), owners.end(), [](const auto& a, const auto& b) {
                      return a.second.bytes < b.second.bytes;
                    })->second;
    // Nobody else's goes in the place of what its owner may still want to read.
    if (most.logs.empty() || most.logs.front()->written >= now - kLeastAge) break;
    const EndedLog& oldest = *most.logs.front();
    most.logs.pop_front();
    removed += RemoveUnlessOpen(oldest) ? 1 : 0;
    // What is another's is none of what is to be bounded.
    most.bytes -= oldest.bytes;
    bytes -= oldest.bytes;
  }
  return removed;
}

}  // namespace rekindle::daemon
