// The service hosted in the calling process, for a machine on which no daemon runs: reached through gRPC like
// the daemon's, without a socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace grpc {
class Channel;
}

namespace rekindle::daemon {

struct EmbeddedOptions {
  std::string store;                         // the store's folder
  std::optional<uint64_t> page_cache_bytes;  // see NodeOptions
};

class EmbeddedService {
 public:
  // Ends the service once its calls are done; jobs it started run on. A process that is about to exit may
  // leave it be after LeaveJobs: nothing else of it needs an orderly end.
  virtual ~EmbeddedService() = default;
  virtual std::shared_ptr<grpc::Channel> channel() = 0;
  // Makes the calls under way give up and say what came of it: a client that cancels its own side would be
  // told nothing, and might end this process before everything is put right. Any thread.
  virtual void CancelCalls() = 0;
  // Until all calls have ended, those that were cancelled by the client too. No others are taken then.
  virtual void AwaitCalls() = 0;
  // How a job ended that was reaped here, which nobody else can find out any more, is recorded when this
  // returns. None is reaped after it. By one thread, when no calls are under way.
  virtual void LeaveJobs() = 0;
};

// Quick: neither opens the store nor looks for CRIU; the calls that need them do. The caller of every call is
// this process. Null when gRPC can't start a server, for which it logs why.
std::unique_ptr<EmbeddedService> StartEmbedded(const EmbeddedOptions& options);

// Calls `stop`, which stops this process and returns when it goes on, as soon as no job stands still because
// the service takes an image of it; none begins to meanwhile. Any thread.
void StopWhenNoJobStandsStill(const std::function<void()>& stop);

}  // namespace rekindle::daemon
