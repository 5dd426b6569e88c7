#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/job_session.h"
#include "cli/streamed_call.h"
#include "cli/table.h"
#include "cli/timeline.h"
#include "cli/timeline_report.h"
#include "cli/top_frame.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

constexpr size_t kLongestRemark = 1000;

std::string Percent(uint64_t part, uint64_t whole) {
  return whole == 0
             ? "0.0 %"
             : absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void PrintCheckpoint(const Output& output, const v1::CheckpointResult& result, bool stopped) {
  const v1::Image& image = result.image();
  const uint64_t logical = image.logical_bytes();
  const uint64_t saved = image.zero_bytes() + image.parent_bytes() + image.shared_bytes();
  std::string text = absl::StrCat(
      image.reference(), "  ", image.digest().substr(0, 19), "\n", "  frozen        ",
      FormatSeconds(result.freeze_seconds()), "  (the job stood still)\n", "  committed     ",
      FormatSeconds(result.commit_seconds()), "  (hashed, compressed and written ",
      stopped ? "before it was ended)\n" : "while it ran)\n", "  memory        ", FormatBytes(logical),
      " in ", result.processes(), result.processes() == 1 ? " process, " : " processes, ", result.threads(),
      result.threads() == 1 ? " thread\n" : " threads\n", "  deduplicated  ", Percent(saved, logical),
      "  (zero ", FormatBytes(image.zero_bytes()), ", as in the parent ", FormatBytes(image.parent_bytes()),
      ", elsewhere ", FormatBytes(image.shared_bytes()), ")\n", "  new           ",
      FormatBytes(image.new_bytes()), ", stored as ", FormatBytes(image.stored_bytes()), "\n");
  if (result.gpu_bytes() > 0) {
    absl::StrAppend(&text, "  GPU memory    ", FormatBytes(result.gpu_bytes()), " of the memory\n");
  }
  output.Text(text);
}

// Where what the job writes is found, after a separator; empty: in no file.
std::string PlaceOfOutput(absl::string_view separator, const v1::Job& job) {
  if (!job.log().empty()) return absl::StrCat(separator, "log ", job.log());
  return job.output().empty() ? "" : absl::StrCat(separator, "its output goes to ", job.output());
}

void PrintJob(const Output& output, const v1::Job& job) {
  output.Text(absl::StrCat("PID ", job.pid(), "  name ", job.name(), PlaceOfOutput("  ", job), "\n"));
}

void PrintStarted(const Output& output, const v1::JobStarted& started, absl::string_view how) {
  const v1::Job& job = started.job();
  output.Text(absl::StrCat(
      job.image(), started.instance().empty() ? " runs again: PID " : " runs: PID ", job.pid(), ", ",
      job.processes(), job.processes() == 1 ? " process, " : " processes, ",
      started.forked() ? "forked" : std::string(how), " in ", FormatSeconds(started.seconds()),
      started.ready_seconds() > 0 ? absl::StrCat(", answered after ", FormatSeconds(started.ready_seconds()))
                                  : "",
      PlaceOfOutput(", ", job), "\n"));
}

// Jobs of an image, or of a template. `call(request, on_event)` makes the call; `how` they came to run.
template <typename Request, typename Call>
int StartCopies(Client& client, const Output& output, Interrupts& interrupts, Request request,
                const TimelineOptions& timeline, bool follow_log, absl::string_view how, Call call) {
  auto timelines = TimelineReport::Prepare(output, timeline, std::max<size_t>(request.clone().count(), 1));
  if (!timelines.ok()) return output.Fail(timelines.status());
  request.set_timeline(timeline.wanted());
  JobSession session(client, output, interrupts, request.detach(), follow_log);
  session.Follow(&*timelines);
  if constexpr (std::is_same_v<Request, v1::RestoreRequest>) {
    if (request.rollback().dry_run()) session.SetDryRun();
  }
  const absl::Status status = call(request, [&](const v1::JobEvent& event) { session.OnEvent(event); });
  timelines->Use();
  const int code = session.Finish(status);
  if (request.detach()) {
    for (const v1::JobStarted& started : session.all_started()) PrintStarted(output, started, how);
  }
  return code;
}

// With how it ended, as far as that is known.
std::string StateWithEnd(const v1::Job& job) {
  if (job.state() != "exited") return job.state();
  if (job.has_signal()) return absl::StrCat("killed (", NameOfSignal(job.signal()), ")");
  return job.has_exit_code() ? absl::StrCat("exited (", job.exit_code(), ")") : job.state();
}

// What comes, or may still come, from a pipe or a socket.
enum class PipedInput { kNone, kMayCome, kIsThere };
PipedInput LookAtPipe(int fd, const struct stat& info) {
  if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) return PipedInput::kNone;
  pollfd entry{fd, POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) return PipedInput::kMayCome;
  int bytes = 0;
  if (::ioctl(fd, FIONREAD, &bytes) != 0) return PipedInput::kMayCome;
  if (bytes > 0) return PipedInput::kIsThere;
  const bool open = S_ISFIFO(info.st_mode) && (entry.revents & (POLLHUP | POLLERR)) == 0;
  return open ? PipedInput::kMayCome : PipedInput::kNone;
}

int StopJob(Client& client, const Output& output, const v1::StopJobRequest& request) {
  absl::StatusOr<v1::StopJobResponse> response = client.StopJob(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const v1::JobExit& exit = response->exited();
  std::string how;  // not known where nobody waited for it
  if (exit.signal() != 0) {
    how = absl::StrCat(": killed by signal ", exit.signal());
  } else if (response->has_exited()) {
    how = absl::StrCat(": exit status ", exit.exit_code());
  }
  output.Text(
      absl::StrCat(request.job().empty() ? absl::StrCat(request.pid()) : request.job(), " has ended", how,
                   response->image().empty() ? "" : absl::StrCat(", last image ", response->image()), "\n"));
  return kDone;
}

}  // namespace

int RunJob(Client& client, absl::string_view host, const GlobalOptions& globals, const Output& output,
           Interrupts& interrupts, const v1::RunRequest& request, const RunOptions& options) {
  JobSession session(client, output, interrupts, request.detach(), /*follow_log=*/true, /*lets_go=*/false,
                     options.stop_on);
  if (request.hold()) session.SetAwaitsHold();
  if (host.empty() || absl::StartsWith(host, "unix:")) session.SetIsHere();
  v1::RunRequest complete = request;
  struct stat input;
  const bool has_input = ::fstat(STDIN_FILENO, &input) == 0;
  if (has_input && S_ISREG(input.st_mode)) complete.set_stdin_fd(STDIN_FILENO);
  const bool supervised = request.has_supervision();
  switch (has_input ? LookAtPipe(STDIN_FILENO, input) : PipedInput::kNone) {
    case PipedInput::kIsThere:
      if (!supervised) {
        output.Warning(
            "something comes from the pipe that is the standard input, and a job does not get it: it reads "
            "/dev/null. Give it a file (< FILE)");
        break;
      }
      return session.Finish(absl::InvalidArgumentError(
          "something comes from the pipe that is the standard input, and what a supervised job has read from "
          "one would not come again when it is brought back: write it to a file and give it that (< FILE), "
          "or "
          "nothing (< /dev/null)"));
    case PipedInput::kMayCome:  // as in a shell over ssh, where mostly nothing does
      if (supervised)
        output.Warning("the standard input is a pipe, which a supervised job can't have: it reads /dev/null");
      break;
    case PipedInput::kNone:
      break;
  }
  bool goes_on = false;
  std::optional<std::vector<v1::Image>> listed_there;  // at the place of --copy-to
  const std::vector<std::string> command(request.argv().begin(), request.argv().end());
  const auto tell_of_command = [&](const v1::Job& job) {
    if (const std::string told = TellsOfOtherCommand(command, job); !told.empty()) output.Warning(told);
  };
  const auto on_event = [&](const v1::JobEvent& event) {
    if (goes_on && event.has_started()) tell_of_command(event.started().job());
    session.OnEvent(event);
  };
  if (options.resume) {
    const absl::StatusOr<std::optional<v1::Job>> runs = JobThatRuns(client, host, request.name());
    if (!runs.ok()) return session.Finish(runs.status());
    if (*runs) {
      output.Note(absl::StrCat("rekindle: job '", request.name(), "' runs already\n"));
      tell_of_command(**runs);
      if (request.detach()) {
        v1::JobStarted started;
        *started.mutable_job() = **runs;
        output.Json(started);
        PrintJob(output, **runs);
        return kDone;
      }
      v1::AttachJobRequest attach;
      attach.set_job(request.name());
      return session.Finish(client.AttachJob(attach, on_event));
    }
    const absl::StatusOr<std::string> how = GoOnFromNewest(client, host, globals, &complete, &listed_there);
    if (!how.ok()) return session.Finish(how.status());
    output.Note(absl::StrCat("rekindle: ", *how, "\n"));
    goes_on = complete.argv().empty();
  }
  if (const std::string late = TellsOfLateImage(client, globals, complete, std::move(listed_there));
      !late.empty())
    output.Warning(late);
  const int code = session.Finish(client.Run(complete, on_event));
  if (request.detach() && session.started() && code == kDone) PrintJob(output, session.started()->job());
  return code;
}

int AttachJob(Client& client, const Output& output, Interrupts& interrupts,
              const v1::AttachJobRequest& request) {
  // In this process it would go on without anybody who brings it back.
  JobSession session(client, output, interrupts, /*detach=*/false, /*follow_log=*/true,
                     /*lets_go=*/client.AtDaemon());
  return session.Finish(
      client.AttachJob(request, [&](const v1::JobEvent& event) { session.OnEvent(event); }));
}

int StopEach(Client& client, const Output& output, const StopJobs& jobs) {
  int code = kDone;
  for (const v1::StopJobRequest& request : jobs.requests) {
    const int ended = StopJob(client, output, request);
    if (code == kDone) code = ended;
  }
  return code;
}

int RestoreJob(Client& client, const Output& output, Interrupts& interrupts,
               const v1::RestoreRequest& request, const TimelineOptions& timeline) {
  v1::RestoreRequest complete = request;
  if (!request.detach() && request.log().empty()) {
    // With --json standard output is for that alone.
    const int job_output = output.json() ? STDERR_FILENO : STDOUT_FILENO;
    for (int fd : {STDIN_FILENO, job_output, STDERR_FILENO}) complete.add_stdio_fds(fd);
  }
  return StartCopies(
      client, output, interrupts, std::move(complete), timeline, /*follow_log=*/true, "restored",
      [&](const v1::RestoreRequest& last, const auto& on_event) { return client.Restore(last, on_event); });
}

int StartFromTemplate(Client& client, const Output& output, Interrupts& interrupts,
                      const v1::StartFromTemplateRequest& request, const TimelineOptions& timeline) {
  return StartCopies(client, output, interrupts, request, timeline, /*follow_log=*/false, "started",
                     [&](const v1::StartFromTemplateRequest& last, const auto& on_event) {
                       return client.StartFromTemplate(last, on_event);
                     });
}

int Checkpoint(Client& client, const Output& output, Interrupts& interrupts,
               const v1::CheckpointRequest& request) {
  const absl::StatusOr<v1::CheckpointEvent> event = StreamedResult<v1::CheckpointEvent>(
      "the checkpoint", client, output, interrupts,
      [&](const auto& on_event) { return client.Checkpoint(request, on_event); });
  if (!event.ok()) return output.Fail(event.status());
  const v1::CheckpointResult& result = event->result();
  for (const std::string& line : result.command_lines()) output.CommandLine(line);
  for (const std::string& warning : result.warnings()) output.Warning(warning);
  output.Json(result);
  PrintCheckpoint(output, result, request.stop());
  return kDone;
}

int ListJobs(Client& client, const Output& output, const v1::ListJobsRequest& request) {
  absl::StatusOr<v1::ListJobsResponse> response = client.ListJobs(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const auto any = [&](auto has) {
    return std::any_of(response->jobs().begin(), response->jobs().end(), has);
  };
  const bool steps = any([](const v1::Job& job) { return job.has_progress(); });
  const bool restarts = any([](const v1::Job& job) { return job.has_supervised(); });
  const bool copies = any([](const v1::Job& job) { return job.copies_size() > 0; });
  std::vector<Table::Column> columns = {{"PID", Align::kRight}, {"NAME"}, {"STATE"}, {"STARTED"}};
  if (steps) columns.push_back({"STEP", Align::kRight});
  if (restarts) columns.push_back({"RESTARTS", Align::kRight});
  if (copies) columns.push_back({"COPIED", Align::kRight});
  for (Table::Column column :
       {Table::Column{"PROCESSES", Align::kRight}, Table::Column{"MEMORY", Align::kRight},
        Table::Column{"IMAGE"}, Table::Column{"COMMAND"}}) {
    columns.push_back(std::move(column));
  }
  Table table(std::move(columns));
  const int64_t now = UnixNanos();
  std::string failures;
  for (const v1::Job& job : response->jobs()) {
    const std::vector<std::string> failure = FailureLines(job);
    for (const std::string& line : failure) {
      absl::StrAppend(&failures, Shown(line, kLongestRemark), "\n");
    }
    for (const std::string& line : CopyTroubles(job)) {
      absl::StrAppend(&failures, Shown(line, kLongestRemark), "\n");
    }
    if (!failure.empty() && !job.log().empty()) {
      absl::StrAppend(&failures, Shown(absl::StrCat(job.name(), ": its output is in ", job.log()), PATH_MAX),
                      "\n");
    }
    std::vector<std::string> row = {absl::StrCat(job.pid()), job.name(),
                                    failure.empty() ? StateWithEnd(job) : job.supervised().phase(),
                                    Age(job.started_unix_ns(), now)};
    if (steps) row.push_back(StepText(job));
    if (restarts) row.push_back(RestartsText(job));
    if (copies) row.push_back(CopiedText(job, now));
    for (const std::string& cell :
         {absl::StrCat(job.processes()), job.resident_bytes() > 0 ? FormatBytes(job.resident_bytes()) : "-",
          job.image().empty() ? "-" : job.image(), Shown(job.command(), 60)}) {
      row.push_back(cell);
    }
    table.AddRow(std::move(row));
  }
  output.Text(absl::StrCat(table.ToString(), failures.empty() ? "" : "\n", failures));
  return kDone;
}

}  // namespace rekindle::cli
