// `rekindle top`: what the jobs do, again and again.
#pragma once

#include "base/command_line.h"
#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"

namespace rekindle::cli {

struct TopRequest {
  double interval_seconds = 1;
  bool once = false;
};

// Outlives the CLI::App that it is added to.
class TopArguments {
 public:
  void AddTo(CLI::App& app);
  const TopRequest& request() const { return request_; }

 private:
  TopRequest request_;
};

// On a terminal until it is told to end; else, or with `once`, one plain frame. With --json a line for each
// refresh. Returns the exit status.
int ShowTop(Client& client, const Output& output, Interrupts& interrupts, const TopRequest& request);

}  // namespace rekindle::cli
