#include "daemon/embedded_service.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "ckpt/stand_still.h"
#include "daemon/grpc_service.h"
#include "daemon/node.h"

namespace rekindle::daemon {
namespace {

class InProcessService : public EmbeddedService {
 public:
  explicit InProcessService(NodeOptions options) : node_(std::move(options)) {
    Caller self;
    self.kind = Caller::Kind::kSelf;
    self.uid = ::geteuid();
    self.gid = ::getegid();
    self.pid = ::getpid();
    service_ = MakeGrpcService(
        node_, [self](const Peer&) { return self; }, [this] { return cancelled_.load(); });
  }

  bool Start() {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    // One client that makes a call or two at a time: more threads would only cost time to start and stop.
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }

  ~InProcessService() override {
    if (server_) server_->Shutdown();
  }

  void CancelCalls() override { cancelled_.store(true); }
  void AwaitCalls() override { server_->Shutdown(); }
  void LeaveJobs() override { node_.reaper().Stop(); }

  std::shared_ptr<grpc::Channel> channel() override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return server_->InProcessChannel(arguments);
  }

 private:
  std::atomic<bool> cancelled_{false};
  Node node_;
  std::shared_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<EmbeddedService> StartEmbedded(const EmbeddedOptions& options) {
  NodeOptions node;
  node.store = options.store;
  node.runtime_directory = DefaultRuntimeDirectory();
  node.log_directory = DefaultLogDirectory();
  node.page_cache_bytes = options.page_cache_bytes;
  auto service = std::make_unique<InProcessService>(std::move(node));
  if (!service->Start()) return nullptr;
  return service;
}

void StopWhenNoJobStandsStill(const std::function<void()>& stop) { ckpt::StopWhenNoneStandsStill(stop); }

}  // namespace rekindle::daemon
