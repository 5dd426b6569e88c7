// rekindle-sandbox: makes sandboxes for its parent (see sandbox_protocol.h). A small process of its own,
// because making one means forking, and the service has many threads and much memory.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/oom_score.h"
#include "base/packet_socket.h"
#include "base/status_json.h"
#include "restore/sandbox_making.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

void Serve() {
  for (;;) {
    auto packet = ReceivePacket(kFactorySocket);
    if (!packet.ok() || !packet->has_value()) return;
    absl::Status status;
    Json answer = Json::object();
    MadeSandbox made;
    try {
      const Json request = Json::parse((*packet)->bytes);
      const std::string what = request.at("do");
      if (what == "make") {
        auto sandbox = MakeSandbox(request, (*packet)->descriptors);
        status = sandbox.status();
        if (sandbox.ok()) made = *std::move(sandbox);
        answer["pid"] = made.pid;
      } else {
        status = absl::UnimplementedError(what);
      }
    } catch (const Json::exception& e) {
      status = absl::InternalError(absl::StrCat("a request for a sandbox makes no sense: ", e.what()));
    }
    if (!status.ok()) {
      answer = Json::object();
      PutStatus(status, &answer);
    }
    const int pidfd = made.pidfd.get();
    SendPacket(kFactorySocket, answer.dump(-1, ' ', false, Json::error_handler_t::replace),
               absl::MakeSpan(&pidfd, pidfd >= 0 ? 1 : 0))
        .IgnoreError();
  }
}

}  // namespace
}  // namespace rekindle::restore

int main() {
  if (::fcntl(rekindle::restore::kFactorySocket, F_GETFD) < 0) {
    std::fputs("rekindle-sandbox is started by Rekindle, not by hand.\n", stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  // As the inits that it forks are, with which their jobs end; what they restore is not.
  rekindle::SpareFromOutOfMemory();
  ::signal(SIGCHLD, SIG_IGN);  // nobody waits for a sandbox here: its end is told by its own socket
  rekindle::restore::Serve();
}
