// What `run` is told that is its own business and not the service's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/client.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct RunOptions {
  // It goes on with the job of its name, or from the newest image of that name, where there is one.
  bool resume = false;
  // Signals to the command that end the job, with a last image.
  std::vector<int> stop_on;
};

// "TERM", "SIGUSR1,xcpu". InvalidArgument: one of them is none that may be given.
absl::StatusOr<std::vector<int>> ParseStopSignals(absl::string_view text);

// For `resume`: the caller's supervised job of this name that has not ended. `host`: of the daemon; empty: in
// this process.
absl::StatusOr<std::optional<v1::Job>> JobThatRuns(Client& client, absl::string_view host,
                                                   const std::string& name);
// For `resume`: puts the newest image of the job's name into `request`, in the place of its command, with
// the older ones for when it can't be restored, and returns what is to be told of that. `host` as above. An
// error: whether there is an image is not known, or none is whole, and the job must not begin anew.
// `*listed_there`: the images of that name at the place of --copy-to, where they had to be looked at.
absl::StatusOr<std::string> GoOnFromNewest(Client& client, absl::string_view host,
                                           const GlobalOptions& globals, v1::RunRequest* request,
                                           std::optional<std::vector<v1::Image>>* listed_there);

// What is to be told before a job goes on from an image and has its images copied to a place: that another
// node put its newest one there just before; empty: nothing shows that. `listed_there` as above: nothing has
// been listed yet where it is empty.
std::string TellsOfLateImage(Client& client, const GlobalOptions& globals, const v1::RunRequest& request,
                             std::optional<std::vector<v1::Image>> listed_there);

// What whoever has given a command is told where `job`, which has gone on, has another one, so that what he
// has changed in it changes nothing; empty: it is the same, as far as can be told.
std::string TellsOfOtherCommand(const std::vector<std::string>& given, const v1::Job& job);

}  // namespace rekindle::cli
