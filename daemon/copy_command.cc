#include "daemon/copy_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/companion_program.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/oom_score.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/node.h"
#include "daemon/supervised_record.h"
#include "rekindle/v1/job_file.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMostOutput = 8 << 10;
constexpr absl::Duration kTrialMayTake = absl::Seconds(60), kLookAtTrialEvery = absl::Milliseconds(50);
constexpr absl::Duration kCommandEndMayTake = absl::Seconds(5);
constexpr absl::string_view kErrorPrefix = "rekindle: error: ", kWarningPrefix = "rekindle: warning: ";

// It is in the folder for users' commands, where the daemon is in that for root's.
absl::StatusOr<std::string> FindCopyingCommand() {
  absl::StatusOr<std::string> beside = FindCompanionProgram("rekindle");
  if (beside.ok()) return beside;
  std::vector<std::string> candidates;
  if (const char* bundle = std::getenv("REKINDLE_BUNDLE"))
    candidates.push_back(absl::StrCat(bundle, "/bin/rekindle"));
  if (const absl::StatusOr<std::string> self = ReadLink("/proc/self/exe"); self.ok())
    candidates.push_back(absl::StrCat(self->substr(0, self->rfind('/')), "/../bin/rekindle"));
  for (const std::string& candidate : candidates) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return beside.status();
}

// The job's mark would make the command one of its processes; and it asks us, whatever the user's commands
// ask.
bool IsLeftOut(absl::string_view variable) {
  return absl::StartsWith(variable, absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "=")) ||
         absl::StartsWith(variable, "REKINDLE_HOST=") || absl::StartsWith(variable, "REKINDLE_STORE=");
}

std::vector<std::string> EnvironmentForCopying(const CopyPlan& plan) {
  std::vector<std::string> environment;
  bool has_path = false;
  for (const std::string& variable : plan.environment) {
    if (IsLeftOut(variable)) continue;
    has_path = has_path || absl::StartsWith(variable, "PATH=");
    environment.push_back(variable);
  }
  if (!has_path) environment.emplace_back("PATH=/usr/local/bin:/usr/bin:/bin");
  return environment;
}

}  // namespace

bool CopyPlan::SameCommand(const CopyPlan& other) const {
  return images == other.images && to.SerializeAsString() == other.to.SerializeAsString() &&
         keep == other.keep && user == other.user && environment == other.environment;
}

namespace {

// What is meant for the job's own work alone is left out.
ProcessSettings ForCopying(ProcessSettings settings) {
  settings.nice = std::max(settings.nice, 0);
  settings.policy = settings.priority = 0;
  settings.affinity_mask.clear();
  return settings;
}

}  // namespace

CopyPlan CopyPlanOf(const v1::SupervisedJobRecord& record, const std::string& images) {
  CopyPlan plan;
  plan.job = record.name();
  plan.images = images;
  plan.to = record.policy().copy_to();
  plan.keep = record.policy().keep_images();
  GetOwner(record, &plan.user);
  if (record.has_settings()) plan.settings = ForCopying(FromProto(record.settings()));
  const auto& variables = record.environment().empty() ? record.copy_environment() : record.environment();
  plan.environment.assign(variables.begin(), variables.end());
  for (auto point = record.points().rbegin(); point != record.points().rend() && plan.newest.empty();
       ++point) {
    if (absl::StartsWith(point->image(), absl::StrCat(images, ":"))) plan.newest = point->digest();
  }
  if (record.ended()) plan.ended_unix_ns = record.ended_unix_ns();
  return plan;
}

absl::StatusOr<CommandOutput> CommandOutput::Make() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  CommandOutput output;
  output.read_ = UniqueFd(ends[0]);
  output.write_ = UniqueFd(ends[1]);
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "making a pipe");
  return output;
}

void CommandOutput::Take() {
  char buffer[4096];
  // Of one that writes without end only so much at a time.
  for (size_t taken = 0; taken < kMostOutput;) {
    const ssize_t n = ::read(read_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    taken += static_cast<size_t>(n);
    text_.append(buffer, static_cast<size_t>(n));
  }
  if (text_.size() > kMostOutput) text_.erase(0, text_.size() - kMostOutput);
}

std::string CommandOutput::Error() const {
  absl::string_view text = absl::StripAsciiWhitespace(text_);
  size_t begin = text.rfind(kErrorPrefix);
  if (begin == absl::string_view::npos) {
    begin = text.rfind('\n');
    begin = begin == absl::string_view::npos ? 0 : begin + 1;
  }
  text.remove_prefix(begin);
  absl::ConsumePrefix(&text, kErrorPrefix);
  absl::ConsumePrefix(&text, kWarningPrefix);
  return text.empty() ? "it says nothing" : std::string(text);
}

absl::StatusOr<Subprocess> StartCopying(const NodeOptions& node, const CopyPlan& plan,
                                        const std::vector<std::string>& options, CommandOutput& output) {
  RK_ASSIGN_OR_RETURN(const std::string command, FindCopyingCommand());
  SubprocessOptions child;
  child.argv = {command};
  if (node.daemon) {
    child.argv.insert(child.argv.end(), {"--host", absl::StrCat("unix://", node.socket)});
  } else {
    child.argv.insert(child.argv.end(), {"--store", node.store});
  }
  const auto add_file = [&](const char* option, const std::string& file) {
    if (!file.empty()) child.argv.insert(child.argv.end(), {option, file});
  };
  add_file("--tls-ca", plan.to.tls_ca());
  add_file("--tls-cert", plan.to.tls_certificate());
  add_file("--tls-key", plan.to.tls_key());
  child.argv.insert(child.argv.end(), {"copy", plan.images, absl::StrCat("--to=", plan.to.place())});
  child.argv.insert(child.argv.end(), options.begin(), options.end());
  child.environment = EnvironmentForCopying(plan);
  child.descriptors = {{output.writing_end(), STDERR_FILENO}};
  child.working_directory = std::string("/");  // what is assigned from "/" GCC 12 wrongly warns of
  child.new_session = true;
  child.die_with_parent_thread = true;
  if (plan.user.uid != ::geteuid()) child.run_as = plan.user;
  child.oom_score = OomScoreForOthers();
  if (plan.settings) {
    if (plan.settings->oom_score_adj) child.oom_score = plan.settings->oom_score_adj;
    child.umask = static_cast<int>(plan.settings->file_mode_mask);
    child.prepare = [&plan] {
      std::array<RefusedSetting, kMostRefused> refused;
      TakeOnSettings(*plan.settings, &refused);
    };
  }
  absl::StatusOr<Subprocess> process = Subprocess::Start(child);
  output.CloseWritingEnd();
  return process;
}

namespace {

constexpr size_t kLongestNameOfPlace = 4096;  // as whoever copies tells it

}  // namespace

absl::Status CheckCopyTo(const v1::CopyTo& to) {
  absl::string_view place = to.place();
  if (place.empty()) return absl::InvalidArgumentError("the place for copies has no name");
  for (const std::string& one : {to.place(), to.tls_ca(), to.tls_certificate(), to.tls_key()}) {
    if (one.size() <= kLongestNameOfPlace) continue;
    return absl::InvalidArgumentError(absl::StrCat("the place for copies, or a file for it, has a name of ",
                                                   one.size(), " bytes: it may have ", kLongestNameOfPlace));
  }
  if (!absl::ConsumePrefix(&place, "rclone:") || absl::StartsWith(place, "/")) return absl::OkStatus();
  const size_t colon = place.find(':', 1), comma = place.find(',');
  if (comma == absl::string_view::npos || comma > colon) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a job's images can't be copied to a remote that is made on the command line, which everybody could "
      "read "
      "there: give it a name with 'rclone config', or in RCLONE_CONFIG_NAME_…");
}

absl::Status TryCopyPlace(const NodeOptions& node, const CopyPlan& plan,
                          const std::function<bool()>& cancelled) {
  RK_ASSIGN_OR_RETURN(CommandOutput output, CommandOutput::Make());
  RK_ASSIGN_OR_RETURN(Subprocess process, StartCopying(node, plan, {"--check"}, output));
  const Deadline deadline(kTrialMayTake);
  while (!AwaitExit(process.pidfd(), kLookAtTrialEvery) && !deadline.passed()) {
    output.Take();
    if (!cancelled || !cancelled()) continue;
    EndCopying(process, kCommandEndMayTake);
    return absl::CancelledError("interrupted before the job was started");
  }
  const bool ended = AwaitExit(process.pidfd(), absl::ZeroDuration());
  output.Take();
  if (!ended) {
    EndCopying(process, kCommandEndMayTake);
    return absl::FailedPreconditionError(
        absl::StrCat("copies can't be written to ", plan.to.place(), " as uid ", plan.user.uid,
                     ": that place has not answered for ", absl::FormatDuration(kTrialMayTake),
                     ". See whether it is there: 'rekindle copy ", plan.images, " --to … --check'"));
  }
  RK_ASSIGN_OR_RETURN(const ExitState exit, process.Wait());
  if (exit.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(output.Error(), " (tried ", node.daemon ? "by the daemon, " : "", "as uid ", plan.user.uid,
                   " with your environment). No job was started: see to that place, or leave --copy-to out"));
}

void EndCopying(absl::Span<Subprocess* const> processes, absl::Duration patience) {
  std::vector<Subprocess*> running;
  for (Subprocess* process : processes) {
    if (!process->running()) continue;
    process->Signal(SIGTERM).IgnoreError();
    running.push_back(process);
  }
  const auto await = [&running](const Deadline& deadline) {
    std::erase_if(running, [&](Subprocess* process) {
      if (!AwaitExit(process->pidfd(), deadline.left())) return false;
      process->Wait().IgnoreError();
      return true;
    });
  };
  await(Deadline(patience));
  for (Subprocess* process : running) process->Signal(SIGKILL).IgnoreError();
  if (!running.empty()) await(Deadline(kCommandEndMayTake));
  // In a wait that nothing interrupts, as for a file server that is away: they end when that does.
  for (Subprocess* process : running) process->Release();
}

void EndCopying(Subprocess& process, absl::Duration patience) {
  Subprocess* const one = &process;
  EndCopying(absl::MakeConstSpan(&one, 1), patience);
}

}  // namespace rekindle::daemon
