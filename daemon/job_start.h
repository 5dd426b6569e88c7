// From a request to run a command to the job that runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/call.h"
#include "daemon/job_launcher.h"
#include "daemon/node.h"
#include "daemon/rpc_support.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

struct JobStart {
  LaunchOptions launch;
  JobRecord record;         // without a PID
  uint64_t log_offset = 0;  // where its output will begin
  NewLog new_log;           // where it was made for it; for who has told of the job to keep
  std::vector<std::string> warnings;
};

// The path of a regular file that the caller has open, for the job to open again, now and when it is brought
// back.
absl::StatusOr<std::string> InputPath(const Caller& caller, int fd);

// Checks the request and opens the job's log.
absl::StatusOr<JobStart> PlanJobStart(Node& node, const Call& call, const v1::RunRequest& request);

// Launches and registers it. After an error nothing of it is left. Adds to
// `warnings`, also those of the plan.
absl::StatusOr<RegisteredJob> StartJob(Node& node, const JobStart& start, std::vector<std::string>* warnings);

}  // namespace rekindle::daemon
