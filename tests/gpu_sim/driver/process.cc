#include "tests/gpu_sim/driver/process.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

namespace rekindle::gpu_sim {

using gpu::cuda::Result;

Process& Process::Get() {
  static Process& process = *new Process;
  return process;
}

void Process::AfterForkInChild() {
  Process& process = Get();
  if (process.forked_.exchange(true)) return;
  ForgetDoor();
  process.link_.CloseUnlocked();
}

Result Process::Usable() const {
  return initialized_ && !forked_ ? gpu::cuda::kSuccess : gpu::cuda::kNotInitialized;
}

// Where the control daemon of MPS listens, whoever initialises the driver is its client from then on.
void Process::JoinMps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  mps_ = ConnectTo(std::string(folder != nullptr ? folder : "/tmp/nvidia-mps") + "/control");
}

Result Process::Init() {
  if (forked_) return gpu::cuda::kNotInitialized;
  const std::lock_guard lock(init_mutex_);
  if (initialized_) return gpu::cuda::kSuccess;
  std::vector<Gpu> gpus;
  Result result = link_.Open(&gpus, &settings_);
  if (result == gpu::cuda::kSuccess) result = Injected(Call::kInit);
  if (result != gpu::cuda::kSuccess) {
    link_.Close();
    return result;
  }
  Heed(settings_);
  devices_.clear();
  for (const Gpu& gpu : gpus) devices_.push_back({.gpu = gpu});
  KeepVisibleDevices();
  if (devices_.empty()) {
    link_.Close();
    return gpu::cuda::kNoDevice;
  }
  if (!OpenDoor([this](const DoorRequest& request, int caller) { return Handle(request, caller); })) {
    link_.Close();
    return gpu::cuda::kOperatingSystem;
  }
  pthread_atfork(nullptr, nullptr, AfterForkInChild);
  JoinMps();
  initialized_ = true;
  return gpu::cuda::kSuccess;
}

void Process::Heed(const Settings& settings) { sync_crashes_ = settings.sync_crashes != 0; }

// CUDA_VISIBLE_DEVICES: numbers or UUIDs (or their beginnings); the first that does not exist ends the list.
void Process::KeepVisibleDevices() {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return;
  std::vector<Device> kept;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    size_t found = devices_.size();
    for (size_t i = 0; i < devices_.size(); ++i) {
      const bool by_uuid =
          word.size() > 4 && UuidText(devices_[i].gpu.uuid).compare(0, word.size(), word) == 0;
      if (by_uuid || word == std::to_string(i)) found = i;
    }
    if (found == devices_.size()) break;
    kept.push_back(devices_[found]);
  }
  devices_ = kept;
}

Result Process::Injected(Call call) {
  const Fault fault = link_.BeginCall(call);
  switch (fault.kind) {
    case FaultKind::kFail:
      return fault.code;
    case FaultKind::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
      return gpu::cuda::kSuccess;
    case FaultKind::kHang:
      for (;;) pause();
    case FaultKind::kKillTarget:
    case FaultKind::kKillCaller:
      raise(SIGKILL);
      return gpu::cuda::kUnknown;
    default:
      return gpu::cuda::kSuccess;
  }
}

Result Process::CreateContext(int device, bool primary, Context** context) {
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) return gpu::cuda::kInvalidDevice;
  Result result = Injected(Call::kContext);
  if (result != gpu::cuda::kSuccess) return result;
  const std::lock_guard lock(contexts_mutex_);
  if (primary) {
    for (const auto& other : contexts_.All()) {
      if (!other->primary || other->device != device) continue;
      ++other->retained;
      *context = other.get();
      return gpu::cuda::kSuccess;
    }
  }
  Device& used = devices_[static_cast<size_t>(device)];
  result = link_.UseContext(used.gpu.uuid);
  if (result != gpu::cuda::kSuccess) return result;
  ++used.contexts;
  auto created = std::make_shared<Context>();
  created->device = device;
  created->primary = primary;
  created->null_stream = std::make_shared<Stream>();
  created->null_stream->context = created.get();
  created->null_stream->blocking = true;
  *context = contexts_.Add(created);
  return gpu::cuda::kSuccess;
}

Result Process::DestroyContext(Context* context) {
  const std::lock_guard lock(contexts_mutex_);
  const std::shared_ptr<Context> found = contexts_.Find(context);
  if (found == nullptr) return gpu::cuda::kInvalidContext;
  if (--found->retained > 0) return gpu::cuda::kSuccess;
  contexts_.Remove(context);
  for (const auto& stream : streams_.All()) {
    if (stream->context != context) continue;
    stream->queue.WaitFor(stream->queue.Pushed());
    streams_.Remove(stream.get());
  }
  found->null_stream->queue.WaitFor(found->null_stream->queue.Pushed());
  memory_.FreeAllOf(&link_, context);
  Device& used = devices_[static_cast<size_t>(found->device)];
  if (--used.contexts == 0) link_.DropContext(used.gpu.uuid);
  return gpu::cuda::kSuccess;
}

bool Process::UsesDevice(size_t device) const {
  return devices_[device].contexts > 0 || memory_.UsesDevice(static_cast<int>(device));
}

}  // namespace rekindle::gpu_sim
