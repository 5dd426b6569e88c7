// The node itself: its version and its health.
#include <string>
#include <utility>
#include <vector>

#include "daemon/copy_notes.h"
#include "daemon/doctor.h"
#include "daemon/rpcs.h"
#include "daemon/version.h"

namespace rekindle::daemon {

absl::Status GetVersion(Node& node, const Call&, const v1::GetVersionRequest& request,
                        v1::GetVersionResponse* response) {
  response->set_version(kVersion);
  response->set_daemon(node.options().daemon);
  response->set_store(node.options().store);
  if (!request.find_criu()) return absl::OkStatus();
  absl::StatusOr<criu::Installation> criu = node.Criu();
  if (criu.ok()) {
    response->set_criu_version(criu->version.ToString());
    response->set_criu_origin(criu->origin);
  }
  return absl::OkStatus();
}

absl::Status Doctor(Node& node, const Call& call, const v1::DoctorRequest&, v1::DoctorResponse* response) {
  for (v1::Check& check : ExamineMachine(node)) *response->add_checks() = std::move(check);
  *response->add_checks() = CheckCopies(CopyStatesFor(node, call));
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
