#include "daemon/job_start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/job_file.h"
#include "daemon/job_log.h"
#include "daemon/job_mark.h"
#include "daemon/supervisor.h"

namespace rekindle::daemon {
namespace {

// The mark of the supervised job that runs the command: what is started is none of its processes.
bool NamesSupervisedJob(Node& node, absl::string_view variable) {
  if (!absl::ConsumePrefix(&variable, absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "="))) return false;
  const std::string name(variable.substr(variable.rfind('/') + 1));
  return variable == JobFile::PathOf(node.options().runtime_directory, name) &&
         (IsJobMark(name) || !node.supervisor().CheckNameIsFree(name).ok());
}

// Sets some aside for a log, as its job's user, for whom there may be less than for us; nothing: the file
// system can't tell.
std::optional<bool> MakeRoom(const UniqueFd& log, const std::optional<RunAs>& user) {
  constexpr off_t kRoomAside = 4096;
  std::optional<bool> made;
  DoAs(user, [&] {
    struct stat info;
    if (::fstat(log.get(), &info) != 0) return;
    if (::fallocate(log.get(), FALLOC_FL_KEEP_SIZE, info.st_size, kRoomAside) == 0) {
      made = true;
    } else if (errno == ENOSPC || errno == EDQUOT) {
      made = false;
    }
  }).IgnoreError();
  return made;
}

}  // namespace

absl::StatusOr<std::string> InputPath(const Caller& caller, int fd) {
  RK_ASSIGN_OR_RETURN(const std::vector<UniqueFd> taken,
                      TakeDescriptors(caller, {fd}, "give the job no input (</dev/null)"));
  const std::string link = absl::StrCat("/proc/self/fd/", taken[0].get());
  char path[4096];
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  struct stat opened;
  if (length < 0 || ::fstat(taken[0].get(), &opened) != 0)
    return ErrnoStatus(errno, "looking at the job's standard input");
  if (length == sizeof path || !S_ISREG(opened.st_mode)) {
    return absl::InvalidArgumentError(
        "the job's standard input is no file: a pipe or a terminal could not be brought back; write it to a "
        "file first");
  }
  std::string name(path, static_cast<size_t>(length));
  if (!IsFileAt(taken[0], name)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job's standard input, ", name, ", has been removed or replaced: open one that is there"));
  }
  return name;
}

absl::StatusOr<JobStart> PlanJobStart(Node& node, const Call& call, const v1::RunRequest& request) {
  if (request.argv().empty()) {
    return absl::InvalidArgumentError("starting a job: no command was given: write it after '--'");
  }
  RK_RETURN_IF_ERROR(CheckAbsolute(request.working_directory(), "the working directory"));
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  JobStart start;
  JobRecord& record = start.record;
  record.name = request.name();
  record.command = absl::StrJoin(request.argv(), " ");
  record.owner = call.caller.uid;
  if (!record.name.empty()) RK_RETURN_IF_ERROR(node.jobs().CheckNameIsFree(record.name));

  LaunchOptions& launch = start.launch;
  launch.argv.assign(request.argv().begin(), request.argv().end());
  for (const std::string& variable : request.environment()) {
    if (!NamesSupervisedJob(node, variable)) launch.environment.push_back(variable);
  }
  if (request.hold()) launch.environment.push_back("REKINDLE_HOLD=1");
  launch.working_directory = request.working_directory();
  launch.run_as = Node::UserOf(call.caller);
  // What this process starts has its own anyway; what is started once more may be by another.
  if (call.caller.kind != Caller::Kind::kSelf || request.has_supervision()) {
    std::string unknown;
    RK_ASSIGN_OR_RETURN(launch.settings, SettingsOfCaller(call.caller, &unknown));
    if (!unknown.empty()) start.warnings.push_back(std::move(unknown));
  }
  if (request.has_stdin_fd()) {
    RK_ASSIGN_OR_RETURN(launch.standard_input, InputPath(call.caller, request.stdin_fd()));
  }
  bool log_was_there = true;
  if (request.log().empty()) {
    std::string name = record.name.empty() ? JobNameFromCommand(record.command) : record.name;
    RK_ASSIGN_OR_RETURN(JobLog log, MakeDefaultLog(node, call.caller, name));
    launch.log = std::move(log.path);
    launch.log_file = std::move(log.file);
    start.new_log = std::move(log.made);
  } else {
    RK_RETURN_IF_ERROR(CheckAbsolute(request.log(), "the log"));
    launch.log = request.log();
    DoAs(launch.run_as, [&] { log_was_there = PathExists(launch.log); }).IgnoreError();
    RK_ASSIGN_OR_RETURN(launch.log_file, OpenFileAs(launch.run_as, launch.log,
                                                    O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, 0600));
  }
  std::string full = WarnOfFullLog(launch.log, call.caller.uid);
  // Some file systems say so that have room.
  const std::optional<bool> room = full.empty() ? true : MakeRoom(launch.log_file, launch.run_as);
  if (room == false && !request.log().empty()) {
    const auto remove = [&] {
      if (IsFileAt(launch.log_file, launch.log) && FileSize(launch.log) == 0) ::unlink(launch.log.c_str());
    };
    if (!log_was_there) DoAs(launch.run_as, remove).IgnoreError();
    return absl::ResourceExhaustedError(absl::StrCat("starting ", launch.argv[0], ": ", full));
  }
  if (room != true) start.warnings.push_back(std::move(full));
  record.log = launch.log;
  struct stat log_before;
  if (::fstat(launch.log_file.get(), &log_before) != 0) return ErrnoStatus(errno, record.log);
  start.log_offset = static_cast<uint64_t>(log_before.st_size);
  return start;
}

absl::StatusOr<RegisteredJob> StartJob(Node& node, const JobStart& start,
                                       std::vector<std::string>* warnings) {
  warnings->insert(warnings->end(), start.warnings.begin(), start.warnings.end());
  std::optional<NotedJob> noted;
  const auto note = [&](pid_t pid) -> absl::Status {
    JobRecord record = start.record;
    record.pid = pid;
    record.started_unix_ns = UnixNanos();
    RK_ASSIGN_OR_RETURN(noted, NoteJob(node, std::move(record), /*unique_name=*/false));
    return absl::OkStatus();
  };
  const absl::StatusOr<pid_t> launched = LaunchJob(start.launch, warnings, note);
  if (!launched.ok() && noted) node.jobs().Forget(noted->record, noted->before);
  RK_ASSIGN_OR_RETURN(const pid_t pid, launched);
  absl::StatusOr<RegisteredJob> job = FollowJob(node, std::move(noted->record));
  if (!job.ok()) {
    ::kill(-pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return job.status();
  }
  Log(LogLevel::kInfo, absl::StrCat("job '", job->record.name, "' started: PID ", pid));
  return job;
}

}  // namespace rekindle::daemon
