#include "daemon/job_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/permission_bits.h"
#include "base/status.h"
#include "base/timeline.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

constexpr mode_t kMode = 0600;
// Its user has to reach his own file, and sees no others.
constexpr mode_t kFolderMode = 0711;
constexpr absl::Duration kLookForChange = absl::Milliseconds(20);
constexpr double kTellWaiting = 1;

// Never through a link, and without waiting for a lease that its owner may have taken.
absl::StatusOr<UniqueFd> OpenIt(const std::string& path) {
  return OpenFile(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
}

absl::StatusOr<rekindle_job_file> ReadIt(int fd, const std::string& path) {
  rekindle_job_file file;
  const ssize_t got = ::pread(fd, &file, sizeof(file), 0);
  if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  if (got != sizeof(file) || file.head.magic != REKINDLE_JOB_FILE_MAGIC ||
      file.head.version != REKINDLE_JOB_FILE_VERSION) {
    return absl::DataLossError(
        absl::StrCat("reading ", path,
                     ": it is no file for a job's progress, or another version's: it is made "
                     "anew when the job is restarted"));
  }
  return file;
}

bool IsOurs(int fd, uid_t uid, gid_t gid) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == uid && info.st_gid == gid &&
         (info.st_mode & kPermissionBits) == kMode && info.st_nlink == 1 &&
         info.st_size == static_cast<off_t>(sizeof(rekindle_job_file));
}

// No job's name begins with a point.
std::string NewName(const std::string& path) {
  const size_t slash = path.rfind('/');
  return absl::StrCat(path.substr(0, slash + 1), ".", path.substr(slash + 1), ".new");
}

absl::Status MakeAnew(const std::string& path, uid_t uid, gid_t gid) {
  const std::string temporary = NewName(path);
  RK_RETURN_IF_ERROR(RemoveTree(temporary));
  RK_ASSIGN_OR_RETURN(UniqueFd made, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, kMode));
  rekindle_job_file file = {};
  file.head.magic = REKINDLE_JOB_FILE_MAGIC;
  file.head.version = REKINDLE_JOB_FILE_VERSION;
  absl::Status written = WriteFully(made.get(), &file, sizeof(file), temporary);
  if (written.ok() && (::fchmod(made.get(), kMode) != 0 || ::fchown(made.get(), uid, gid) != 0 ||
                       ::rename(temporary.c_str(), path.c_str()) != 0)) {
    written = ErrnoStatus(errno, absl::StrCat("making ", path, " for uid ", uid));
  }
  if (!written.ok()) ::unlink(temporary.c_str());
  return written;
}

absl::Status MakeFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) {
    return absl::InvalidArgumentError(absl::StrCat("making ", path, ": the path has no folder"));
  }
  const std::string folder = path.substr(0, slash);
  RK_RETURN_IF_ERROR(MakeDirectories(folder, kFolderMode));
  if (::chmod(folder.c_str(), kFolderMode) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("opening folder ", folder, " for jobs' users"));
}

}  // namespace

absl::StatusOr<JobFile> JobFile::Create(const std::string& path, uid_t uid, gid_t gid) {
  RK_RETURN_IF_ERROR(MakeFolder(path));
  JobFile job_file(path);
  {
    absl::StatusOr<UniqueFd> there = OpenIt(path);
    absl::StatusOr<rekindle_job_file> content =
        there.ok() && IsOurs(there->get(), uid, gid) ? ReadIt(there->get(), path) : absl::NotFoundError("");
    if (content.ok()) {
      job_file.ours_ = content->daemon;
    } else {
      if (there.ok()) RK_RETURN_IF_ERROR(RemoveTree(path));
      RK_RETURN_IF_ERROR(MakeAnew(path, uid, gid));
    }
  }
  job_file.watch_ = FileWatch::Of(path);
  RK_RETURN_IF_ERROR(job_file.Release(/*image_taken=*/false));
  return job_file;
}

std::string JobFile::PathOf(absl::string_view runtime_directory, absl::string_view mark) {
  return absl::StrCat(runtime_directory, "/" REKINDLE_JOB_FILE_FOLDER "/", mark);
}

absl::Status JobFile::Remove(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("removing ", path));
}

absl::StatusOr<rekindle_job_file> JobFile::ReadAt(const std::string& path) {
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  return ReadIt(fd.get(), path);
}

absl::StatusOr<uint64_t> JobFile::SetDue() {
  ours_.due = std::max<uint64_t>(ours_.due + 1, 1);
  RK_RETURN_IF_ERROR(Write());
  return ours_.due;
}

absl::Status JobFile::Release(bool image_taken) {
  if (ours_.released == ours_.due) return absl::OkStatus();
  ours_.released = ours_.due;
  if (image_taken) ours_.taken = ours_.due;
  return Write();
}

absl::Status JobFile::KeepWaiting() {
  const double now = MonotonicSeconds();
  if (now - kept_waiting_ < kTellWaiting) return absl::OkStatus();
  kept_waiting_ = now;
  ++ours_.storing;
  return Write();
}

absl::Status JobFile::ForgetJob() const {
  const rekindle_job_file_job nothing = {};
  return WritePart(&nothing, sizeof(nothing), offsetof(rekindle_job_file, job));
}

absl::Status JobFile::MarkRestored() {
  // Also larger than in an earlier file, of which the image may know.
  ours_.restored = std::max<uint64_t>(ours_.restored + 1, static_cast<uint64_t>(UnixNanos()));
  return Write();
}

absl::Status JobFile::Write() const {
  return WritePart(&ours_, sizeof(ours_), offsetof(rekindle_job_file, daemon));
}

absl::Status JobFile::WritePart(const void* part, size_t size, size_t offset) const {
  RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenIt(path_));
  const ssize_t written = ::pwrite(fd.get(), part, size, static_cast<off_t>(offset));
  if (written == static_cast<ssize_t>(size)) return absl::OkStatus();
  return ErrnoStatus(written < 0 ? errno : ENOSPC, absl::StrCat("writing ", path_));
}

bool JobFile::WaitForChange(absl::Duration timeout) {
  if (watch_ != nullptr) return watch_->WaitForChange(timeout);
  absl::SleepFor(std::min(timeout, kLookForChange));
  return true;
}

}  // namespace rekindle::daemon
