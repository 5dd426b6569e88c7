// `rekindle logs`: what a job has written, read here, with the rights of whoever asks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/client.h"
#include "cli/output.h"

namespace rekindle::cli {

struct LogsOfJob {
  std::string job;  // its name or PID
  bool follow = false;
  std::optional<uint64_t> tail;  // so many lines at its end; all
};

// Returns the exit status. `host`: of the daemon, as in Endpoint.
int ShowLogs(Client& client, const std::string& host, const Output& output, const LogsOfJob& what);

// The path of a job's log, as it can be opened; empty: it has none.
const std::string& LogOf(const v1::Job& job);

// Where the last `lines` lines begin in a file of this size; its end may lack the newline.
uint64_t BeginOfLastLines(int fd, uint64_t size, uint64_t lines);

}  // namespace rekindle::cli
