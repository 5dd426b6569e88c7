#include "daemon/function_template.h"

#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "daemon/process_info.h"

namespace rekindle::daemon {

absl::StatusOr<std::shared_ptr<LiveTemplate>> LiveTemplate::Up(Node& node, restore::CloneOptions options) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.CriuIfAny());
  options.template_instance = true;
  options.fill = restore::Fill::kEager;  // its copies' faults then need no pager
  RK_ASSIGN_OR_RETURN(restore::CloneResult started, node.clones().Start(*store, criu, options));
  auto taken = restore::Template::Take(started, node.options().runtime_directory,
                                       node.options().standby_copies, options.cancel_fd);
  absl::Status status = taken.status();
  if (taken.ok() && !(*taken)->refusal().empty()) status = absl::FailedPreconditionError((*taken)->refusal());
  if (!status.ok()) {
    restore::EndSandbox(started.sandbox.init, started.sandbox.directory);
    return status;
  }
  std::shared_ptr<LiveTemplate> live(new LiveTemplate());
  live->template_ = *std::move(taken);
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
