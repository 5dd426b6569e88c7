// Templates that copies are forked from: those of users, and of functions, with what belongs to one of these
// on this node.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/node.h"
#include "restore/clone.h"
#include "restore/template.h"

namespace rekindle::daemon {

// A template that runs, and the sandbox that it runs in.
struct StartedTemplate {
  restore::CloneResult sandbox;
  std::unique_ptr<restore::Template> forks;  // it may refuse

  void End() const { restore::EndSandbox(sandbox.sandbox.init, sandbox.sandbox.directory); }
};
// On failure nothing is left of it. Of the options it fills in what makes a template of a clone.
absl::StatusOr<StartedTemplate> StartTemplate(Node& node, store::Store& store, const criu::Installation& criu,
                                              restore::CloneOptions options);

// Its end takes it down; what was forked from it goes on. Thread-safe.
class LiveTemplate {
 public:
  // Of the options it takes image, network, temporary, limits, cancel_fd. FailedPrecondition: it can't be
  // forked; says why. Cancelled: `cancel_fd` became readable.
  static absl::StatusOr<std::shared_ptr<LiveTemplate>> Up(Node& node, const restore::CloneOptions& options);

  restore::Template& forks() { return *template_; }
  uint64_t memory_bytes() const { return memory_bytes_; }  // that it had when it was put up

 private:
  LiveTemplate() = default;
  std::unique_ptr<restore::Template> template_;
  uint64_t memory_bytes_ = 0;
};

}  // namespace rekindle::daemon
