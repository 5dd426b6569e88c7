#include "daemon/function_template.h"

#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "daemon/process_info.h"

namespace rekindle::daemon {

absl::StatusOr<StartedTemplate> StartTemplate(Node& node, store::Store& store, const criu::Installation& criu,
                                              restore::CloneOptions options) {
  options.template_instance = true;
  // All of its memory is there before it is forked: its copies' faults then need no pager.
  options.fill = restore::Fill::kEager;
  StartedTemplate started;
  RK_ASSIGN_OR_RETURN(started.sandbox, node.clones().Start(store, criu, options));
  auto taken = restore::Template::Take(started.sandbox, node.options().runtime_directory,
                                       node.options().standby_copies, options.cancel_fd);
  if (!taken.ok()) {
    started.End();
    return taken.status();
  }
  started.forks = *std::move(taken);
  return started;
}

absl::StatusOr<std::shared_ptr<LiveTemplate>> LiveTemplate::Up(Node& node,
                                                               const restore::CloneOptions& options) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.CriuIfAny());
  RK_ASSIGN_OR_RETURN(StartedTemplate up, StartTemplate(node, *store, criu, options));
  if (!up.forks->refusal().empty()) {
    const absl::Status refused = absl::FailedPreconditionError(up.forks->refusal());
    up.End();
    return refused;
  }
  restore::CloneResult& started = up.sandbox;
  std::shared_ptr<LiveTemplate> live(new LiveTemplate());
  live->template_ = std::move(up.forks);
  const uint64_t charged = started.group ? started.group->MemoryInUse() : 0;
  live->memory_bytes_ =
      (charged > 0 ? charged : MeasureTree(started.root).resident_bytes) + live->template_->ready_bytes();
  // Its sandbox ends with the last copy that was forked from it, its group with that.
  auto kept = std::make_shared<restore::CloneResult>(std::move(started));
  UniqueFd control = std::move(kept->sandbox.control);
  RK_RETURN_IF_ERROR(node.reaper()
                         .Watch(
                             std::move(control),
                             [kept](int ended) {
                               const restore::SandboxEnd end =
                                   restore::ReadEnd(ended, kept->sandbox.directory);
                               RemoveTree(kept->sandbox.directory).IgnoreError();
                               return end.exit;
                             },
                             [](const ExitState&) {})
                         .status());
  return live;
}

}  // namespace rekindle::daemon
