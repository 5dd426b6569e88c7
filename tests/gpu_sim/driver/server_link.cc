#include "tests/gpu_sim/driver/server_link.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace rekindle::gpu_sim {

using gpu::cuda::Result;
using gpu::cuda::Uuid;

Result ServerLink::Ask(const Request& request, Reply* reply, std::string* text, int* descriptor) {
  const std::lock_guard lock(mutex_);
  if (socket_ < 0 || !gpu_sim::Ask(socket_, request, "", reply, text, descriptor)) return gpu::cuda::kUnknown;
  return reply->result;
}

Result ServerLink::Open(std::vector<Gpu>* gpus, Settings* settings) {
  const char* path = std::getenv(kServerVariable);
  if (path == nullptr) return gpu::cuda::kNoDevice;
  Close();
  {
    const std::lock_guard lock(mutex_);
    socket_ = ConnectTo(path);
  }
  Reply reply;
  std::string text;
  if (Ask({.op = Op::kHello}, &reply, &text) != gpu::cuda::kSuccess) {
    Close();
    return gpu::cuda::kNoDevice;
  }
  *gpus = ArrayFromText<Gpu>(text);
  *settings = reply.settings;
  return gpu::cuda::kSuccess;
}

void ServerLink::CloseUnlocked() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void ServerLink::Close() {
  const std::lock_guard lock(mutex_);
  CloseUnlocked();
}

void ServerLink::TakeOver(ServerLink* other) {
  const std::scoped_lock lock(mutex_, other->mutex_);
  CloseUnlocked();
  std::swap(socket_, other->socket_);
}

Result ServerLink::Gpus(std::vector<Gpu>* gpus) {
  Reply reply;
  std::string text;
  const Result result = Ask({.op = Op::kHello}, &reply, &text);
  *gpus = ArrayFromText<Gpu>(text);
  return result;
}

Result ServerLink::Allocate(const Uuid& gpu, uint64_t bytes, uint64_t* id, int* memory) {
  Reply reply;
  const Result result = Ask({.op = Op::kAllocate, .bytes = bytes, .uuid = gpu}, &reply, nullptr, memory);
  *id = reply.id;
  return result;
}

Result ServerLink::Free(uint64_t id) {
  Reply reply;
  return Ask({.op = Op::kFree, .id = id}, &reply);
}

Result ServerLink::OpenShared(uint64_t id, Uuid* gpu, uint64_t* bytes, int* memory) {
  Reply reply;
  const Result result = Ask({.op = Op::kOpenShared, .id = id}, &reply, nullptr, memory);
  *gpu = reply.uuid;
  *bytes = reply.bytes;
  return result;
}

Result ServerLink::UseContext(const Uuid& gpu) {
  Reply reply;
  return Ask({.op = Op::kUseContext, .uuid = gpu}, &reply);
}

Result ServerLink::DropContext(const Uuid& gpu) {
  Reply reply;
  return Ask({.op = Op::kDropContext, .uuid = gpu}, &reply);
}

Fault ServerLink::BeginCall(Call call) {
  Reply reply;
  Ask({.op = Op::kBeginCall, .call = call}, &reply);
  return reply.fault;
}

}  // namespace rekindle::gpu_sim
