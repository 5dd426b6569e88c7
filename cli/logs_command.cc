#include "cli/logs_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/positioned_io.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/log_follower.h"

namespace rekindle::cli {
namespace {

constexpr uint64_t kPieceBytes = 64 << 10;

// A living one has its name or number before one that has ended, and a later one before an earlier.
absl::StatusOr<v1::Job> FindJob(Client& client, const std::string& word) {
  v1::ListJobsRequest request;
  request.set_all(true);
  RK_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, client.ListJobs(request));
  const v1::Job* found = nullptr;
  for (const v1::Job& job : response.jobs()) {
    if (job.name() != word && absl::StrCat(job.pid()) != word) continue;
    const auto rank = [](const v1::Job& of) {
      return std::pair(of.state() != "exited", of.started_unix_ns());
    };
    if (found == nullptr || rank(job) > rank(*found)) found = &job;
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(
      absl::StrCat("there is no job '", word, "': 'rekindle ps --all' lists those there are"));
}

absl::StatusOr<std::string> FileOf(const v1::Job& job, const std::string& host) {
  const std::string& path = LogOf(job).empty() ? job.output() : LogOf(job);
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("job '", job.name(), "' has no log, and ",
                                                      job.state() == "exited"
                                                          ? "where its output went is not known any more"
                                                          : "its output goes to no file"));
  }
  if (host.empty() || absl::StartsWith(host, "unix:")) return path;
  return absl::FailedPreconditionError(absl::StrCat("what job '", job.name(),
                                                    "' writes is on the machine of its daemon, ", host,
                                                    ": in ", path, "; 'rekindle logs' shows it there"));
}

// One that may be shown from any place on.
absl::StatusOr<UniqueFd> OpenLog(const std::string& path, uint64_t* size) {
  // A pipe with nobody at its other end would be waited for.
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDONLY | O_NOCTTY | O_NONBLOCK));
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no file, and what was written to it is gone"));
  *size = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::Status Show(int log, uint64_t begin, uint64_t end) {
  return CopyPart(log, begin, end, STDOUT_FILENO, "standard output").status();
}

absl::Status Follow(Client& client, const Output& output, const v1::Job& job, const std::string& path,
                    uint64_t begin) {
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<LogFollower> follower,
                      LogFollower::Start(path, begin, STDOUT_FILENO));
  v1::WaitForJobsRequest request;
  request.add_jobs(job.name());
  const absl::Status ended = AwaitEnds(client, output, request, [](const v1::JobExit&) {});
  if (absl::IsFailedPrecondition(ended)) {
    output.Warning(absl::StrCat("it is shown until you end this command: ", ended.message()));
    for (;;) ::pause();
  }
  const absl::Status shown = follower->Finish();
  return ended.ok() ? shown : ended;
}

}  // namespace

const std::string& LogOf(const v1::Job& job) { return job.log_path().empty() ? job.log() : job.log_path(); }

uint64_t BeginOfLastLines(int fd, uint64_t size, uint64_t lines) {
  if (lines == 0) return size;
  std::string piece(kPieceBytes, '\0');
  for (uint64_t end = size; end > 0;) {
    const uint64_t begin = end - std::min(end, kPieceBytes);
    const ssize_t got = ::pread(fd, piece.data(), end - begin, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    for (ssize_t at = got - 1; at >= 0; --at) {
      const uint64_t next = begin + static_cast<uint64_t>(at) + 1;
      // That of the last line ends it.
      if (piece[static_cast<size_t>(at)] == '\n' && next != size && --lines == 0) return next;
    }
    end = begin;
  }
  return 0;
}

int ShowLogs(Client& client, const std::string& host, const Output& output, const LogsOfJob& what) {
  absl::StatusOr<v1::Job> job = FindJob(client, what.job);
  if (!job.ok()) return output.Fail(job.status());
  const absl::StatusOr<std::string> path = FileOf(*job, host);
  if (!path.ok()) return output.Fail(path.status());
  uint64_t size = 0;
  absl::StatusOr<UniqueFd> log = OpenLog(*path, &size);
  const std::string doing = absl::StrCat("showing the log of job '", job->name(), "'");
  if (absl::IsNotFound(log.status()) && absl::EndsWith(*path, kDeletedSuffix)) {
    return output.Fail(absl::FailedPreconditionError(
        absl::StrCat(doing, ": the file that it writes to, ", absl::StripSuffix(*path, kDeletedSuffix),
                     ", was removed, and has no name any more: restored with --log it gets another")));
  }
  if (!log.ok()) return output.Fail(Annotate(log.status(), doing));
  const uint64_t begin = what.tail ? BeginOfLastLines(log->get(), size, *what.tail) : 0;
  const absl::Status shown = what.follow && job->state() != "exited"
                                 ? Follow(client, output, *job, *path, begin)
                                 : Show(log->get(), begin, size);
  return shown.ok() ? static_cast<int>(kDone) : output.Fail(Annotate(shown, doing));
}

}  // namespace rekindle::cli
