// What the job holds handles to: contexts, streams, events, modules. They live in the job only, so a
// checkpoint need not care for them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_sim/driver/kernels.h"
#include "tests/gpu_sim/driver/stream_queue.h"

namespace rekindle::gpu_sim {

struct Stream {
  const void* context;
  bool blocking;  // ordered with the context's null stream
  StreamQueue queue;
};

struct Context {
  int device;
  bool primary;
  int retained = 1;
  std::shared_ptr<Stream> null_stream;
  std::atomic<gpu::cuda::Result> error{0};  // of its device code; once set it stays
};

struct Event {
  std::shared_ptr<Stream> stream;  // where it was recorded last, if it was
  uint64_t number = 0;
};

struct Function {
  const Kernel* kernel;
};

struct Module {
  std::set<std::string> entries;
  std::map<std::string, Function> functions;
};

// Handles are the objects' addresses; what was removed or never added is not found. Thread-safe.
template <typename T>
class Registry {
 public:
  T* Add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    T* handle = object.get();
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> Find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // Returns it, so that its end does not come under our lock.
  std::shared_ptr<T> Remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<T>> All() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, std::shared_ptr<T>> objects_;
};

}  // namespace rekindle::gpu_sim
