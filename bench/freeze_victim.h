// A process to be frozen: what freeze_ways.cc measures ways on. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::bench {

// Has one thread and one area of anonymous memory without zero pages, and does what it is told.
class Victim {
 public:
  // `huge`: asks for transparent huge pages; else it has none.
  static absl::StatusOr<std::unique_ptr<Victim>> Start(uint64_t bytes, bool huge);
  ~Victim();  // kills it
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  pid_t pid() const { return pid_; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // What a step of a training does: it goes over all its memory, reads every page and changes `percent` of
  // them, always the same ones, whole, in runs of 64 KiB. EndPass waits for it: seconds by the victim's own
  // clock.
  absl::Status BeginPass(int percent);
  absl::StatusOr<double> EndPass();
  absl::StatusOr<double> Pass(int percent);

  // It forks a copy of itself, which never runs: seconds in fork(), in which it stands still. The caller
  // kills the twin.
  struct Twin {
    pid_t pid;
    double seconds;
  };
  absl::StatusOr<Twin> Fork();

  // It makes a userfaultfd with these features (linux/userfaultfd.h) and registers its memory with it for
  // write protection, as a hook within a job could; nothing is protected yet.
  absl::StatusOr<UniqueFd> RegisterForWriteProtection(uint64_t features);

  // Returns when it stands still.
  absl::Status Stop();
  void Go();

 private:
  Victim() = default;
  struct Order;
  struct Answer;
  absl::Status Send(const Order& order);
  absl::StatusOr<Answer> Receive(UniqueFd* descriptor = nullptr);
  [[noreturn]] static void Live(int socket, uint64_t bytes, bool huge);

  pid_t pid_ = -1;
  uint64_t address_ = 0, bytes_ = 0;
  UniqueFd socket_;
};

}  // namespace rekindle::bench
