#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "cli/commands.h"

namespace rekindle::cli {
namespace {

constexpr absl::Duration kBetweenLooksForDaemon = absl::Milliseconds(500);

bool IsOf(const v1::JobExit& exit, const std::string& job) {
  return exit.name() == job || absl::StrCat(exit.pid()) == job;
}

int StatusOf(const v1::JobExit& exit) {
  constexpr int kKilled = 128;  // as shells say it
  return exit.signal() != 0 ? kKilled + exit.signal() : exit.exit_code();
}

void Tell(const Output& output, const v1::JobExit& exit) {
  output.Json(exit);
  if (!exit.report().empty())
    output.Warning(absl::StrCat("job '", exit.name(), "' was given up: ", exit.report()));
  if (exit.unknown()) {
    output.Warning(absl::StrCat("nobody saw how job '", exit.name(), "' (PID ", exit.pid(),
                                ") ended: it ended without a daemon, or while that was gone; status ",
                                exit.exit_code(), " stands for that"));
  }
  const std::string how = exit.unknown()       ? ""
                          : exit.signal() != 0 ? absl::StrCat(": killed by signal ", exit.signal())
                                               : absl::StrCat(": exit status ", exit.exit_code());
  output.Text(absl::StrCat(exit.name(), " has ended", how, "\n"));
}

}  // namespace

absl::Status AwaitEnds(Client& client, const Output& output, v1::WaitForJobsRequest request,
                       const Client::OnEvent<v1::JobExit>& on_exit) {
  // Whoever finds no daemon at all does not wait for one.
  if (client.AtDaemon()) {
    const absl::Status answers = client.GetVersion(v1::GetVersionRequest()).status();
    if (!answers.ok()) return answers;
  }
  const Deadline deadline(request.has_timeout_seconds() ? absl::Seconds(request.timeout_seconds())
                                                        : absl::InfiniteDuration());
  for (bool told = false;;) {
    absl::Status status = client.WaitForJobs(request, [&](const v1::JobExit& exit) {
      on_exit(exit);
      auto* left = request.mutable_jobs();
      const auto its =
          std::find_if(left->begin(), left->end(), [&](const std::string& job) { return IsOf(exit, job); });
      if (its != left->end()) left->erase(its);
    });
    if (!absl::IsUnavailable(status) || !client.AtDaemon() || request.jobs().empty()) return status;
    if (!std::exchange(told, true))
      output.Note("rekindle: the daemon has gone. This command waits until it is back\n");
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          "whether the jobs have ended is not known: the daemon has gone, and is not back in time");
    }
    client.AwaitConnection(std::min(kBetweenLooksForDaemon, deadline.left()));
    if (request.has_timeout_seconds()) request.set_timeout_seconds(absl::ToDoubleSeconds(deadline.left()));
  }
}

int WaitForJobs(Client& client, const Output& output, const v1::WaitForJobsRequest& request) {
  std::vector<v1::JobExit> exits;
  const absl::Status status = AwaitEnds(client, output, request, [&](const v1::JobExit& exit) {
    Tell(output, exit);
    exits.push_back(exit);
  });
  if (absl::IsDeadlineExceeded(status)) return output.Fail(status, kTimedOut);
  if (!status.ok()) return output.Fail(status);
  for (const std::string& job : request.jobs()) {
    const auto its =
        std::find_if(exits.begin(), exits.end(), [&](const v1::JobExit& exit) { return IsOf(exit, job); });
    if (its != exits.end() && StatusOf(*its) != kDone) return StatusOf(*its);
  }
  return kDone;
}

}  // namespace rekindle::cli
