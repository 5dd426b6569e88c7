// rekindle-sandbox: makes sandboxes for its parent (see sandbox_protocol.h). A small process of its own,
// because making one means forking, and the service has many threads and much memory.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "restore/sandbox_making.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

// CRIU keeps what it has learned of the kernel in /run if that is a tmpfs: here it is one, for CRIU alone.
absl::Status Learn(const Json& request) {
  const std::vector<std::string> criu = request.at("criu");
  const std::string path = request.at("path");
  int pidfd = -1;
  RK_ASSIGN_OR_RETURN(pid_t pid, CloneInto(CLONE_NEWNS, &pidfd));
  UniqueFd child(pidfd);
  if (pid == 0) {
    ::close(kFactorySocket);
    ::signal(SIGCHLD, SIG_DFL);
    absl::Status status = [&]() -> absl::Status {
      if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return ErrnoStatus(errno, "/");
      if (::mount("tmpfs", "/run", "tmpfs", 0, nullptr) != 0) return ErrnoStatus(errno, "/run");
      RK_RETURN_IF_ERROR(RunCommand(criu, absl::Seconds(20)).status());
      RK_ASSIGN_OR_RETURN(std::string content, ReadFile("/run/criu.kdat"));
      return WriteFileAtomically(path, content);
    }();
    ::_exit(status.ok() ? 0 : 1);
  }
  pollfd entry{child.get(), POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  if (PathExists(path)) return absl::OkStatus();
  return absl::InternalError("CRIU did not keep what it found out about this kernel");
}

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
      } else if (what == "learn") {
        status = Learn(request);
      } else {
        status = absl::UnimplementedError(what);
      }
    } catch (const Json::exception& e) {
      status = absl::InternalError(absl::StrCat("a request for a sandbox makes no sense: ", e.what()));
    }
    if (!status.ok()) {
      answer = {{"error", std::string(status.message())}, {"code", static_cast<int>(status.code())}};
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
  ::signal(SIGCHLD, SIG_IGN);  // nobody waits for a sandbox here: its end is told by its own socket
  rekindle::restore::Serve();
}
