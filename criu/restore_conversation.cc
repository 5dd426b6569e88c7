#include "criu/restore_conversation.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>

#include "base/parallel.h"
#include "base/status.h"
#include "criu/restore_preload.h"

namespace rekindle::criu {
namespace {

// Values of CRIU's RPC.
constexpr int kTypeRestore = 2;
constexpr int kTypeNotify = 6;
constexpr int kCgroupModeIgnore = 0;
constexpr absl::string_view kTasksReadyStage = "post-restore", kTasksRunStage = "pre-resume",
                            kTasksHaveRunStage = "post-resume";

constexpr size_t kMaxMessageBytes = 1 << 20;

}  // namespace

bool MustBeBounded(const RestoreOptions& options) { return options.user.has_value() || options.file_locks; }

pb::RpcRequest RestoreRequest(const RestoreOptions& options) {
  pb::RpcRequest request;
  request.set_type(kTypeRestore);
  pb::RpcOptions* rpc = request.mutable_options();
  rpc->set_log_file(options.log_file);
  rpc->set_log_level(options.log_level);
  rpc->set_notify(true);
  rpc->set_restore_sibling(true);
  rpc->set_cgroup_mode(kCgroupModeIgnore);
  rpc->set_evasive_devices(true);
  rpc->set_shell_job(options.shell_job);
  rpc->set_tcp_established(options.tcp_established);
  rpc->set_tcp_close(options.tcp_close);
  rpc->set_file_locks(options.file_locks);
  rpc->set_external_unix_sockets(options.external_unix_sockets);
  for (const std::string& external : options.external) rpc->add_external(external);
  if (options.lazy_pages) rpc->set_lazy_pages(true);
  return request;
}

absl::Status RestoreConversation::Send(const pb::RpcRequest& request) const {
  std::string bytes = request.SerializeAsString();
  for (;;) {
    ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    // A peer that is gone is noticed, and explained better, where its answer is read.
    if (errno == EPIPE || errno == ECONNRESET) return absl::OkStatus();
    return ErrnoStatus(errno, "talking to CRIU");
  }
}

absl::StatusOr<std::optional<pb::RpcResponse>> RestoreConversation::Receive(bool may_hang) const {
  const int look_every_ms = static_cast<int>(absl::ToInt64Milliseconds(HungRestore::kLookEvery));
  HungRestore hung(criu_pidfd_, find_dead_);
  for (;;) {
    // CRIU's own end is watched too: tasks in the making hold copies of its socket, so that its death alone
    // does not bring end-of-file.
    pollfd entries[3] = {{socket_, POLLIN, 0}, {cancel_fd_, POLLIN, 0}, {criu_pidfd_, POLLIN, 0}};
    const int heard = ::poll(entries, 3, find_dead_ && may_hang ? look_every_ms : -1);
    if (heard < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "waiting for CRIU");
    }
    if (heard == 0) {
      RK_RETURN_IF_ERROR(hung.Look());
      continue;
    }
    if (entries[1].revents != 0) return absl::CancelledError("restore cancelled");
    const auto bytes = std::make_unique_for_overwrite<char[]>(kMaxMessageBytes);
    // Plain recv drops descriptors that may ride along (a terminal's), which is what we want.
    ssize_t n = ::recv(socket_, bytes.get(), kMaxMessageBytes, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (entries[2].revents != 0) return std::nullopt;
      continue;
    }
    if (n <= 0) return std::nullopt;
    pb::RpcResponse response;
    if (!response.ParseFromArray(bytes.get(), static_cast<int>(n))) {
      return absl::InternalError("CRIU sent a message over its RPC that can't be read");
    }
    return response;
  }
}

RestoreOutcome RestoreConversation::Run(const std::function<absl::Status(pid_t root)>& tasks_ready) const {
  RestoreOutcome outcome;
  absl::Status refusal;
  for (;;) {
    // CRIU ends a refused tree itself, and from pre-resume on the processes do, if they like.
    const bool they_run = !outcome.stages.empty() && (outcome.stages.back().name == kTasksRunStage ||
                                                      outcome.stages.back().name == kTasksHaveRunStage);
    absl::StatusOr<std::optional<pb::RpcResponse>> received = Receive(refusal.ok() && !they_run);
    if (!received.ok()) {
      outcome.status = received.status();
      outcome.unanswered = true;
      return outcome;
    }
    if (!received->has_value()) {
      outcome.status = refusal.ok() ? absl::InternalError("CRIU ended early") : refusal;
      outcome.criu_failed = refusal.ok();
      return outcome;
    }
    const pb::RpcResponse& response = **received;
    if (response.type() != kTypeNotify) {
      if (response.restored().pid() > 0) outcome.root = response.restored().pid();
      if (!refusal.ok()) {
        outcome.status = refusal;
      } else if (!response.success() || outcome.root <= 0) {
        outcome.status = absl::InternalError("CRIU failed");
        outcome.criu_failed = true;
      }
      return outcome;
    }
    // Before the first: CRIU has read its images, and made nothing.
    if (outcome.stages.empty() && bounded_) refusal = CheckPreloaded(criu_pidfd_);
    outcome.stages.push_back({response.notification().stage(), MonotonicNanos()});
    if (response.notification().pid() > 0) outcome.root = response.notification().pid();
    if (refusal.ok() && response.notification().stage() == kTasksReadyStage) {
      // CRIU must have its answer whatever happens: it ends the tree then.
      refusal = CatchNoMoreThreads([&] { return tasks_ready(outcome.root); });
    }
    pb::RpcRequest answer;
    answer.set_type(kTypeNotify);
    answer.set_notify_success(refusal.ok());
    if (absl::Status sent = Send(answer); !sent.ok()) {
      outcome.status = sent;
      return outcome;
    }
  }
}

}  // namespace rekindle::criu
