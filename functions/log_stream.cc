#include "functions/log_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace rekindle::functions {
namespace {

constexpr absl::string_view kDropped =
    "rekindle: older lines were dropped here: a log stream keeps its last 8 to 16 MiB\n";
constexpr double kBytesPerMb = 1 << 20;  // Lambda's MB

// Nobody but the service makes anything in the folder: what is there is a log that it made. Its owner may
// have a lease on it, for whose end nobody waits.
absl::StatusOr<UniqueFd> OpenOwned(const std::string& path, int flags, const Owner& owner) {
  UniqueFd file(::open(path.c_str(), flags | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  if (!file.valid() && errno == EWOULDBLOCK) {
    return absl::UnavailableError(
        absl::StrCat("opening the log ", path, ": a process of user ", owner.uid,
                     " has a lease on it (F_SETLEASE): end that, or try again when the lease is broken"));
  }
  struct stat info;
  if (!file.valid() || ::fstat(file.get(), &info) != 0)
    return ErrnoStatus(errno, absl::StrCat("opening the log ", path));
  if (info.st_uid != owner.uid && ::fchown(file.get(), owner.uid, owner.gid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("giving the log ", path, " to user ", owner.uid));
  }
  return file;
}

uint64_t SizeOf(int file) {
  struct stat info;
  return ::fstat(file, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

}  // namespace

uint64_t FirstByteOf(int log) {
  const off_t data = ::lseek(log, 0, SEEK_DATA);
  return data < 0 ? SizeOf(log) : static_cast<uint64_t>(data);
}

LogStream::LogStream(std::string path, UniqueFd file, UniqueFd append, UniqueFd times)
    : path_(std::move(path)), file_(std::move(file)), append_(std::move(append)), times_(std::move(times)) {}

absl::StatusOr<std::shared_ptr<LogStream>> LogStream::Open(const std::string& path, const Owner& owner) {
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenOwned(path + ".log", O_RDWR, owner));
  RK_ASSIGN_OR_RETURN(UniqueFd append, OpenOwned(path + ".log", O_WRONLY | O_APPEND, owner));
  RK_ASSIGN_OR_RETURN(UniqueFd times, OpenOwned(path + ".times", O_RDWR | O_APPEND, owner));
  std::shared_ptr<LogStream> stream(
      new LogStream(path, std::move(file), std::move(append), std::move(times)));
  absl::MutexLock lock(&stream->mutex_);
  stream->AddTime(SizeOf(stream->file_.get()));
  return stream;
}

absl::StatusOr<UniqueFd> LogStream::OpenForInstance() const {
  return OpenFile(path_ + ".log", O_WRONLY | O_APPEND | O_NOFOLLOW | O_NOCTTY);
}

void LogStream::Lost(const absl::Status& status) {
  if (!std::exchange(lost_, true)) {
    Log(LogLevel::kWarning, absl::StrCat(status.message(), ": from here on lines of this log are lost"));
  }
}

uint64_t LogStream::Append(std::string lines) {
  const uint64_t size = SizeOf(file_.get());
  char last = '\n';
  // What the instance wrote last may have no end of line.
  if (size > 0 && ::pread(file_.get(), &last, 1, static_cast<off_t>(size - 1)) == 1 && last != '\n') {
    lines = absl::StrCat("\n", lines);
  }
  if (absl::Status status = WriteFully(append_.get(), lines.data(), lines.size(), path_ + ".log");
      !status.ok()) {
    Lost(status);
    return size;
  }
  // Also where the instance has written in between, this is the end of what was written here.
  const off_t end = ::lseek(append_.get(), 0, SEEK_CUR);
  if (end < 0) return size;
  const size_t before = last == '\n' ? 0 : 1;
  return static_cast<uint64_t>(end) - lines.size() + before;
}

void LogStream::AddTime(uint64_t offset) {
  const LogTime time{offset, UnixNanos()};
  if (absl::Status status = WriteFully(times_.get(), &time, sizeof time, path_ + ".times"); !status.ok())
    Lost(status);
}

uint64_t LogStream::Begin(absl::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  TrimLocked();
  const uint64_t offset = Append(absl::StrCat("START RequestId: ", request_id, " Version: $LATEST\n"));
  AddTime(offset);
  return offset;
}

void LogStream::End(const InvocationReport& report) {
  const double ms = report.duration_seconds * 1000;
  std::string lines = absl::StrFormat(
      "END RequestId: %s\n"
      "REPORT RequestId: %s\tDuration: %.2f ms\tBilled Duration: %.0f ms\tMemory Size: %.0f MB\t"
      "Max Memory Used: %.0f MB",
      report.request_id, report.request_id, ms, std::ceil(ms),
      static_cast<double>(report.memory_limit_bytes) / kBytesPerMb,
      std::ceil(static_cast<double>(report.most_memory_bytes) / kBytesPerMb));
  if (report.init_seconds)
    absl::StrAppendFormat(&lines, "\tInit Duration: %.2f ms", *report.init_seconds * 1000);
  if (!report.status.empty()) absl::StrAppend(&lines, "\tStatus: ", report.status);
  lines += "\n";
  absl::MutexLock lock(&mutex_);
  const size_t bytes = lines.size();
  AddTime(Append(std::move(lines)) + bytes);
}

void LogStream::FailStart(const StartReport& report) {
  std::string line = absl::StrFormat("INIT_REPORT Init Duration: %.2f ms\tPhase: init\tStatus: %s",
                                     report.duration_seconds * 1000, report.timed_out ? "timeout" : "error");
  if (!report.error_type.empty()) absl::StrAppend(&line, "\tError Type: ", report.error_type);
  Note(line);
}

void LogStream::Note(absl::string_view text) {
  absl::MutexLock lock(&mutex_);
  Append(absl::StrCat(text, "\n"));
}

std::string LogStream::TailSince(uint64_t offset) const {
  const uint64_t end = SizeOf(file_.get());
  uint64_t begin = std::max(offset, FirstByteOf(file_.get()));
  bool cut = begin > offset;
  if (begin >= end) return "";
  if (end - begin > kTailBytes) {
    begin = end - kTailBytes;
    cut = true;
  }
  std::string tail(end - begin, '\0');
  const ssize_t got = ::pread(file_.get(), tail.data(), tail.size(), static_cast<off_t>(begin));
  tail.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (!cut) return tail;
  if (const size_t line = tail.find('\n'); line != std::string::npos && line + 1 < tail.size()) {
    return tail.substr(line + 1);
  }
  // Not in the middle of a character.
  size_t first = 0;
  while (first < std::min<size_t>(tail.size(), 4) && (tail[first] & 0xc0) == 0x80) ++first;
  return tail.substr(first);
}

void LogStream::Trim() {
  absl::MutexLock lock(&mutex_);
  TrimLocked();
}

void LogStream::TrimLocked() {
  const uint64_t size = SizeOf(file_.get());
  if (size <= kMostBytes) return;
  const uint64_t first = FirstByteOf(file_.get());
  if (size - std::min(first, size) <= kMostBytes) return;
  struct stat info;
  if (::fstat(file_.get(), &info) != 0) return;
  const uint64_t block = std::max<uint64_t>(static_cast<uint64_t>(info.st_blksize), 4096);
  const uint64_t cut = (size - kKeptBytes) / block * block;
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(cut)) == 0) {
    const absl::Status noted = [&]() -> absl::Status {
      const ssize_t n =
          ::pwrite(file_.get(), kDropped.data(), kDropped.size(), static_cast<off_t>(cut - kDropped.size()));
      return n == static_cast<ssize_t>(kDropped.size())
                 ? absl::OkStatus()
                 : ErrnoStatus(errno, absl::StrCat("writing ", path_, ".log"));
    }();
    if (!noted.ok()) Lost(noted);
    ForgetTimesBefore(cut - kDropped.size());
    return;
  }
  if (::ftruncate(file_.get(), 0) != 0) {
    Lost(ErrnoStatus(errno, absl::StrCat("shortening ", path_, ".log")));
    return;
  }
  ForgetTimesBefore(UINT64_MAX);
  Append(std::string(kDropped));
}

void LogStream::ForgetTimesBefore(uint64_t offset) {
  // The function's owner can make it as large as he likes.
  std::vector<LogTime> times(std::min<uint64_t>(SizeOf(times_.get()) / sizeof(LogTime), kMostTimes));
  const ssize_t got = ::pread(times_.get(), times.data(), times.size() * sizeof(LogTime), 0);
  times.resize(got > 0 ? static_cast<size_t>(got) / sizeof(LogTime) : 0);
  auto kept =
      std::find_if(times.begin(), times.end(), [&](const LogTime& time) { return time.offset >= offset; });
  // The one before says when what lies across the cut was written.
  if (kept != times.begin()) {
    --kept;
    kept->offset = 0;
  }
  const size_t first = static_cast<size_t>(kept - times.begin());
  const std::string fresh(reinterpret_cast<const char*>(times.data() + first),
                          (times.size() - first) * sizeof(LogTime));
  // A reader that comes in between finds some times missing.
  if (::ftruncate(times_.get(), 0) != 0) return;
  if (absl::Status status = WriteFully(times_.get(), fresh.data(), fresh.size(), path_ + ".times");
      !status.ok()) {
    Lost(status);
  }
}

}  // namespace rekindle::functions
